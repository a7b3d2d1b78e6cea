//! The `sureq` command: the only crate that prints and exits.
//!
//! * `serve`: a server in front of a home. Its settings come from flags, the environment and a file (`settings`,
//!   `bounds`).
//! * `user`: hashes and tokens for the users of a server, which `users_file` reads.
//! * `check`, `backup`: stores as directories (`check`, `backup`), as text (`report`) or as JSON (`json`).
//! * `client`: the commands that use a home: push, pop, ack, work, stats and others.
//! * `prove`: crashes a server and its workers under load, and counts lost tasks.
//! * `shell`: completions and manual pages. `format`: numbers, sizes and times. `progress`: progress lines and bars.
//!   `log`: the log events of the library on standard error.
//! * `clean`: requeues tasks of dead clients in the keys of other programs on a Redis.
//! * `dq`: the same server behind the command line of DefferedQ (`dq`), also when the program is called `dq`.

mod allocator;
mod backup;
mod bounds;
mod check;
mod clean;
mod client;
mod dq;
mod exit;
mod format;
mod go_uint;
mod json;
mod log;
mod print;
mod progress;
mod prove;
mod report;
mod serve;
mod settings;
mod shell;
mod signals;
mod size;
mod user;
mod users_file;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use client::{bench, explain, finish, look, manage, pop, push, work};

/// A reliable work queue: each task goes to one worker at a time and is kept until that worker acknowledges it.
#[derive(Parser)]
#[command(name = "sureq", version, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a queue: Redis clients on one port, netcat on another
    Serve(Box<settings::ServeArguments>),
    /// Push tasks: arguments, files, or one per line of standard input
    Push(Box<push::PushArguments>),
    /// Pop tasks under a lease, and print their receipts
    Pop(pop::PopArguments),
    /// Acknowledge tasks: finish them
    Ack(finish::AckArguments),
    /// Extend the lease of a task
    Extend(finish::ExtendArguments),
    /// Requeue a leased task
    Return(finish::ReturnArguments),
    /// Cancel tasks
    Cancel(finish::CancelArguments),
    /// Bury tasks: keep them as dead
    Bury(finish::BuryArguments),
    /// Delete tasks, whatever their state
    Delete(finish::DeleteArguments),
    /// Run a program for each task
    Work(Box<work::WorkArguments>),
    /// List queues with their counts
    Queues(look::QueuesArguments),
    /// Show counts, ages, rates and settings
    Stats(look::StatsArguments),
    /// Show tasks without changing them
    Inspect(look::InspectArguments),
    /// Explain why a task is not running now
    Explain(explain::ExplainArguments),
    /// List live workers
    Workers(look::WorkersArguments),
    /// Stop delivering tasks of queues
    Pause(manage::PauseArguments),
    /// Resume delivering tasks of queues
    Resume(manage::PauseArguments),
    /// Show or change the settings of a queue
    Config(manage::ConfigArguments),
    /// Make dead tasks ready again
    Revive(manage::ReviveArguments),
    /// Remove the tasks of a queue
    Purge(manage::PurgeArguments),
    /// Measure a home, alone or beside another
    Bench(bench::BenchArguments),
    /// Crash a server and its workers under load, on your own disk, and count lost tasks
    Prove(prove::ProveArguments),
    #[command(name = prove::WORKER, hide = true)]
    ProveWorker(prove::WorkerArguments),
    #[command(name = prove::SERVER, hide = true)]
    ProveServer(Box<settings::ServeArguments>),
    /// Make a password hash or a token for the users file
    User(user::UserArguments),
    /// Check a store that is not served, and save the tasks of a damaged one
    Check(check::CheckArguments),
    /// Copy a store, even while it is being served
    Backup(backup::BackupArguments),
    /// Print completions for a shell
    Completions(shell::CompletionsArguments),
    /// Print the manual page, or write all of them
    Man(shell::ManArguments),
    /// Requeue tasks of dead clients in queues that are shared with other programs on a Redis
    Clean(clean::CleanArguments),
    /// Run a drop-in replacement for DefferedQ, with its flags and its protocol
    #[command(disable_help_flag = true)]
    Dq {
        /// DefferedQ's own flags; `sureq dq --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
}

fn main() -> ExitCode {
    allocator::return_memory_soon();
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    if Path::new(&program).file_name().is_some_and(|name| name == "dq") {
        return dq::run(&program, &arguments.collect::<Vec<_>>());
    }
    match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Push(arguments) => push::run(&arguments),
        Command::Pop(arguments) => pop::run(&arguments),
        Command::Ack(arguments) => finish::ack(&arguments),
        Command::Extend(arguments) => finish::extend(&arguments),
        Command::Return(arguments) => finish::return_task(&arguments),
        Command::Cancel(arguments) => finish::cancel(&arguments),
        Command::Bury(arguments) => finish::bury(&arguments),
        Command::Delete(arguments) => finish::delete(&arguments),
        Command::Work(arguments) => work::run(&arguments),
        Command::Queues(arguments) => look::queues(&arguments),
        Command::Stats(arguments) => look::stats(&arguments),
        Command::Inspect(arguments) => look::inspect(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Workers(arguments) => look::workers(&arguments),
        Command::Pause(arguments) => manage::pause(&arguments),
        Command::Resume(arguments) => manage::resume(&arguments),
        Command::Config(arguments) => manage::config(&arguments),
        Command::Revive(arguments) => manage::revive(&arguments),
        Command::Purge(arguments) => manage::purge(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Prove(arguments) => prove::run(&arguments),
        Command::ProveWorker(arguments) => prove::run_worker(&arguments),
        Command::ProveServer(arguments) => prove::run_server(&arguments),
        Command::User(arguments) => user::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Completions(arguments) => shell::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => shell::man(&arguments, Arguments::command()),
        Command::Clean(arguments) => clean::run(&arguments),
        Command::Dq { flags } => dq::run(&format!("{program} dq"), &flags),
    }
}

//! The `sureq` command: the only crate that prints and exits.
//!
//! * `serve`: a server in front of a home. Its settings come from flags, the environment and a file (`settings`).
//! * `user`: hashes and tokens for the users of a server, which `people` reads from a file.
//! * `check`, `backup`: stores as directories (`check`, `backup`), in words (`words`) or as JSON (`json`).
//! * `client`: the commands that ask a home: push, pop, ack, work, stats and the others.
//! * `prove`: crashes a server and its workers under load, and counts what was lost.
//! * `shell`: completions and manual pages. `humane`: numbers and times for people. `progress`: how far a long work has come.
//!   `told`: what the library tells of itself while it works.
//! * `clean`: brings back what clients of other programs took and will not finish, on a Redis.
//! * `dq`: the same server behind the command line of DefferedQ (`dq`), also when the program is called `dq`.

mod allocator;
mod backup;
mod bounds;
mod check;
mod clean;
mod client;
mod dq;
mod exit;
mod go_uint;
mod humane;
mod json;
mod people;
mod progress;
mod prove;
mod say;
mod serve;
mod settings;
mod shell;
mod signals;
mod size;
mod told;
mod user;
mod words;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use client::{bench, explain, finish, look, manage, pop, push, work};

/// A reliable work queue: hands each task to one worker at a time, and keeps it until that worker is done.
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
    /// Take tasks, and show what it takes to finish them
    Pop(pop::PopArguments),
    /// Finish tasks
    Ack(finish::AckArguments),
    /// Give a task back
    Return(finish::ReturnArguments),
    /// Cancel tasks
    Cancel(finish::CancelArguments),
    /// Run a program for each task
    Work(Box<work::WorkArguments>),
    /// List queues with their counts
    Queues(look::QueuesArguments),
    /// Show counts, ages, rates and settings
    Stats(look::StatsArguments),
    /// Look at tasks without changing them
    Inspect(look::InspectArguments),
    /// Say why a task is not running now
    Explain(explain::ExplainArguments),
    /// List the workers that are alive
    Workers(look::WorkersArguments),
    /// Stop handing out the tasks of queues
    Pause(manage::PauseArguments),
    /// Hand them out again
    Resume(manage::PauseArguments),
    /// Show or change the settings of a queue
    Config(manage::ConfigArguments),
    /// Bring dead tasks back
    Revive(manage::ReviveArguments),
    /// Remove the tasks of a queue
    Purge(manage::PurgeArguments),
    /// Measure a home, alone or beside another
    Bench(bench::BenchArguments),
    /// Crash a server and its workers under load, on your own disk, and count what was lost
    Prove(prove::ProveArguments),
    #[command(name = prove::WORKER, hide = true)]
    ProveWorker(prove::WorkerArguments),
    #[command(name = prove::SERVER, hide = true)]
    ProveServer(Box<settings::ServeArguments>),
    /// Make the hash of a password, or a token, for a file of users
    User(user::UserArguments),
    /// Check a store that nobody serves, and save what can be saved of a damaged one
    Check(check::CheckArguments),
    /// Copy a store, even while it is being served
    Backup(backup::BackupArguments),
    /// Print what a shell needs to complete commands
    Completions(shell::CompletionsArguments),
    /// Print the manual page, or write all of them
    Man(shell::ManArguments),
    /// Bring back tasks that somebody took and will not finish, on a Redis that is shared with other programs
    Clean(clean::CleanArguments),
    /// Stand in for DefferedQ: its flags, its protocol, and nothing else
    #[command(disable_help_flag = true)]
    Dq {
        /// DefferedQ's own flags; `sureq dq --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
}

fn main() -> ExitCode {
    allocator::give_back_soon();
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    if Path::new(&program).file_name().is_some_and(|name| name == "dq") {
        return dq::run(&program, &words.collect::<Vec<_>>());
    }
    match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Push(arguments) => push::run(&arguments),
        Command::Pop(arguments) => pop::run(&arguments),
        Command::Ack(arguments) => finish::ack(&arguments),
        Command::Return(arguments) => finish::give_back(&arguments),
        Command::Cancel(arguments) => finish::cancel(&arguments),
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

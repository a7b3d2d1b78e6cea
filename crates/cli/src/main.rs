//! The `sureq` command: the only crate that prints and exits.
//!
//! * `serve`: a server in front of a home. Its settings come from flags, the environment and a file (`settings`).
//! * `user`: hashes and tokens for the users of a server, which `people` reads from a file.
//! * `check`, `backup`: stores as directories (`check`, `backup`), in words (`words`) or as JSON (`json`).
//! * `clean`: brings back what clients of other programs took and will not finish, on a Redis.
//! * `dq`: the same server behind the command line of DefferedQ (`dq`), also when the program is called `dq`.

mod backup;
mod bounds;
mod check;
mod clean;
mod dq;
mod exit;
mod json;
mod people;
mod progress;
mod say;
mod serve;
mod settings;
mod signals;
mod size;
mod user;
mod words;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

// Small payloads and connection buffers come and go at a high rate; the system's allocator costs twice the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Make the hash of a password, or a token, for a file of users
    User(user::UserArguments),
    /// Check a store that nobody serves, and save what can be saved of a damaged one
    Check(check::CheckArguments),
    /// Copy a store, even while it is being served
    Backup(backup::BackupArguments),
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
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    if Path::new(&program).file_name().is_some_and(|name| name == "dq") {
        return dq::run(&program, &words.collect::<Vec<_>>());
    }
    match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::User(arguments) => user::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Clean(arguments) => clean::run(&arguments),
        Command::Dq { flags } => dq::run(&format!("{program} dq"), &flags),
    }
}

//! Errors of the client commands, and the exit code of each.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use sureq::{Broken, Error, OpenError, Refusal};

use crate::exit::{self, failed};

/// The exit code of a command that ran, or the reason why it could not.
pub(super) type CommandResult = Result<ExitCode, CommandError>;

pub(super) enum CommandError {
    /// The home cannot be opened.
    Open(OpenError),
    /// The directory of this name holds no store.
    NoStore(String),
    /// The home refused the command or is unavailable.
    Home(Error),
    /// The home refused the command, and another command or flag does the same.
    Advised { error: Error, advice: String },
    /// The command failed after a part of its work; `done` describes that part.
    Partly { done: String, then: Box<CommandError> },
    /// Closing the home failed.
    Broken(Broken),
    /// A file, a standard stream or a process cannot be read or written.
    File { operation: String, error: io::Error },
    /// A runtime or thread cannot be started.
    System(io::Error),
    /// The command needs a confirmation, and standard input is no terminal.
    Unconfirmed(String),
    /// The arguments contradict each other.
    Usage(String),
    /// The worker ended with an error.
    Worker(sureq::WorkerError),
    /// The reader of standard output exited: no error.
    OutputClosed,
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::Home(error)
    }
}

impl CommandError {
    /// A failed write to standard output.
    pub(super) fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::File { operation: "cannot write to standard output".to_owned(), error }
    }

    /// The same error after a part of the work was done.
    pub(super) fn after(self, done: String) -> Self {
        Self::Partly { done, then: Box::new(self) }
    }

    pub(super) fn reading(path: &str, error: io::Error) -> Self {
        Self::File { operation: format!("cannot read {path}"), error }
    }
}

/// Prints the error, if there is one, and returns the exit code.
pub(super) fn code(result: CommandResult) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => print("", error),
    }
}

fn print(before: &str, error: CommandError) -> ExitCode {
    let failed = |code, why: &dyn Display| failed(code, format_args!("{before}{why}"));
    match error {
        CommandError::OutputClosed => ExitCode::SUCCESS,
        CommandError::Open(error) => failed(open_code(&error), &error),
        CommandError::NoStore(dir) => failed(
            exit::CANNOT_START,
            &format_args!("there is no store in {dir}; the first push creates one"),
        ),
        CommandError::Home(error) => failed(error_code(&error), &error),
        CommandError::Partly { done, then } => print(&format!("{before}{done}; then "), *then),
        CommandError::Broken(error) => failed(exit::DISK_FAILED, &error),
        CommandError::File { operation, error } => {
            failed(exit::CANNOT_START, &format_args!("{operation}: {error}"))
        }
        CommandError::System(error) => failed(exit::CANNOT_START, &error),
        CommandError::Unconfirmed(what) => {
            failed(exit::USAGE, &format_args!("{what}: confirm it with --yes"))
        }
        CommandError::Usage(why) => failed(exit::USAGE, &why),
        CommandError::Worker(error) => failed(worker_code(&error), &error),
        CommandError::Advised { error, advice } => {
            failed(error_code(&error), &format_args!("{error}; {advice}"))
        }
    }
}

fn open_code(error: &OpenError) -> u8 {
    match error {
        error if error.is_denied() => exit::NO_PERMISSION,
        OpenError::Redis { .. } | OpenError::Server { .. } => exit::UNAVAILABLE,
        error => exit::code_of(error),
    }
}

fn worker_code(error: &sureq::WorkerError) -> u8 {
    match error {
        sureq::WorkerError::Home(error) if error.is_denied() => exit::NO_PERMISSION,
        _ => exit::CANNOT_START,
    }
}

fn error_code(error: &Error) -> u8 {
    match error {
        error if error.is_denied() => exit::NO_PERMISSION,
        Error::Unavailable { .. } => exit::UNAVAILABLE,
        Error::Unknown { .. } => exit::UNKNOWN,
        Error::Refused(Refusal::QueueFull | Refusal::OutOfMemory | Refusal::NoSpace) => exit::TRY_AGAIN,
        _ => exit::CANNOT_START,
    }
}

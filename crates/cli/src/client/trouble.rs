//! What goes wrong when a home is asked, and the code that the command exits with.

use std::io;
use std::process::ExitCode;

use sureq::{Broken, Error, OpenError, Refusal};

use crate::exit::{self, failed};

/// What a command comes to: a code, or what went wrong.
pub(super) type Done = Result<ExitCode, Trouble>;

pub(super) enum Trouble {
    /// The home cannot be opened.
    Open(OpenError),
    /// There is no store in this directory.
    NoStore(String),
    /// The home says no, or cannot be asked.
    Home(Error),
    /// The home says no, and the command line has another way.
    Advised {
        error: Error,
        /// What to write instead.
        advice: String,
    },
    /// Only part of it was done.
    Partly {
        /// What was.
        done: String,
        /// Why not the rest.
        then: Box<Trouble>,
    },
    /// The home failed while it was closed.
    Broken(Broken),
    /// What was read or written: a file, the standard streams, a process.
    File { what: String, error: io::Error },
    /// The machine has no threads, or the like.
    Machine(io::Error),
    /// Something dangerous, and nobody to ask.
    Unasked(String),
    /// The words make no sense together.
    Usage(String),
    /// The worker ended.
    Worker(sureq::WorkerError),
    /// Whoever read the output has gone away.
    Unread,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Home(error)
    }
}

impl Trouble {
    /// What became of writing to standard output.
    pub(super) fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Unread;
        }
        Self::File { what: "cannot write to standard output".to_owned(), error }
    }

    /// The same, after so much was done.
    pub(super) fn after(self, done: String) -> Self {
        Self::Partly { done, then: Box::new(self) }
    }

    pub(super) fn reading(path: &str, error: io::Error) -> Self {
        Self::File { what: format!("cannot read {path}"), error }
    }
}

/// Says what went wrong, if anything, and answers the code.
pub(super) fn code(done: Done) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(trouble) => tell("", trouble),
    }
}

fn tell(before: &str, trouble: Trouble) -> ExitCode {
    let failed = |code, why: &dyn std::fmt::Display| failed(code, format_args!("{before}{why}"));
    match trouble {
        Trouble::Unread => ExitCode::SUCCESS,
        Trouble::Open(error) => failed(open_code(&error), &error),
        Trouble::NoStore(dir) => {
            failed(exit::CANNOT_START, &format_args!("there is no store in {dir}; the first push makes one"))
        }
        Trouble::Home(error) => failed(error_code(&error), &error),
        Trouble::Partly { done, then } => tell(&format!("{before}{done}; then "), *then),
        Trouble::Broken(error) => failed(exit::DISK_FAILED, &error),
        Trouble::File { what, error } => failed(exit::CANNOT_START, &format_args!("{what}: {error}")),
        Trouble::Machine(error) => failed(exit::CANNOT_START, &error),
        Trouble::Unasked(what) => failed(exit::USAGE, &format_args!("{what}: say --yes if that is meant")),
        Trouble::Usage(why) => failed(exit::USAGE, &why),
        Trouble::Worker(error) => failed(worker_code(&error), &error),
        Trouble::Advised { error, advice } => failed(error_code(&error), &format_args!("{error}; {advice}")),
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

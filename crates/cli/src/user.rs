//! `sureq user`: makes password hashes and tokens for a `[[user]]` table, so that the file holds no secret in plain
//! text.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _, stderr, stdin};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use sureq::limits::CREDENTIAL_BYTES_MAX;
use sureq_server::users;

use crate::exit::{self, failed};
use crate::print;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UserArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Ask for a password (or read one line of standard input) and print its argon2id hash
    Hash,
    /// Print a new random token, and its hash on a second line
    Token,
}

const EXAMPLES: &str = "\
Examples:
  sureq user hash                         asks for the password, twice
  sureq user hash < password.txt          takes the first line
  sureq user token                        the first line is for the client, the second for the file

A file for `sureq serve --users FILE`:
  [[user]]
  name = \"mailer\"
  password = \"$argon2id$v=19$m=19456,t=2,p=1$...\"
  tokens = [\"sha256:...\"]
  allow = { produce = [\"emails*\"], consume = [\"emails*\"], read = [\"*\"] }";

pub(crate) fn run(arguments: &UserArguments) -> ExitCode {
    let done = match arguments.action {
        Action::Hash => hash(),
        Action::Token => token(),
    };
    done.map_or_else(|why| failed(exit::CANNOT_START, why), |()| ExitCode::SUCCESS)
}

const NO_RANDOM_NUMBERS: &str = "cannot read random numbers from the system";

fn hash() -> Result<(), String> {
    let password = if stdin().is_terminal() {
        let password = ask("Password: ")?;
        if ask("Repeat the password: ")? != password {
            return Err("the passwords differ: try again".to_owned());
        }
        password
    } else {
        line().map_err(|error| format!("cannot read the password: {error}"))?
    };
    if password.is_empty() || password.len() > CREDENTIAL_BYTES_MAX {
        return Err(format!("the password must have 1 to {CREDENTIAL_BYTES_MAX} bytes"));
    }
    let hash = users::hash_password(password.as_bytes()).ok_or(NO_RANDOM_NUMBERS)?;
    print::out(format_args!("{hash}"));
    Ok(())
}

fn token() -> Result<(), String> {
    let token = users::new_token().ok_or(NO_RANDOM_NUMBERS)?;
    print::out(format_args!("{token}\n{}", users::token_line(token.as_bytes())));
    if stderr().is_terminal() {
        print::err(format_args!(
            "\nGive the first line to the client as its password; it is stored nowhere. Put the second into `tokens`."
        ));
    }
    Ok(())
}

/// Reads a line from the terminal with echo off.
fn ask(prompt: &str) -> Result<String, String> {
    let failed = |error: io::Error| format!("cannot read the password: {error}");
    let _ = write!(stderr(), "{prompt}");
    let visible = tcgetattr(stdin()).map_err(|error| failed(error.into()))?;
    let mut hidden = visible.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(stdin(), OptionalActions::Flush, &hidden).map_err(|error| failed(error.into()))?;
    let password = line();
    let restored = tcsetattr(stdin(), OptionalActions::Now, &visible);
    let _ = writeln!(stderr());
    restored.map_err(|error| failed(error.into()))?;
    password.map_err(failed)
}

/// Reads a line of standard input without its line end.
fn line() -> io::Result<String> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

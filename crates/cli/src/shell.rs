//! `sureq completions` and `sureq man`: what shells and manual readers want to know.

use std::io::{self, Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::{self, failed};

/// What `completions` can be told.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq completions bash > /etc/bash_completion.d/sureq
  sureq completions fish > ~/.config/fish/completions/sureq.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn completions(arguments: &CompletionsArguments, mut command: Command) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "sureq", &mut text);
    ended(stdout().write_all(&text))
}

/// What `man` can be told.
#[derive(Args)]
pub(crate) struct ManArguments {
    /// Write a page per command into this directory; without it, the first page goes to standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn man(arguments: &ManArguments, command: Command) -> ExitCode {
    ended(match &arguments.dir {
        Some(dir) => std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir)),
        None => clap_mangen::Man::new(command).render(&mut stdout()),
    })
}

fn ended(written: io::Result<()>) -> ExitCode {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => failed(exit::CANNOT_START, error),
        _ => ExitCode::SUCCESS,
    }
}

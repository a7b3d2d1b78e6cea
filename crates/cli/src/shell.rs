//! `sureq completions` and `sureq man`: completions for shells and manual pages.

use std::io::{self, Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::{self, failed};

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

#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq man | man -l -
  sureq man --dir /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// Write one page per command into this directory [default: print the page of sureq]
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

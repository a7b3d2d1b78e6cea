//! `sureq check`: checks a store, and saves the tasks of a damaged one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use sureq::{StoreError, store};

use crate::exit::{self, failed};
use crate::json::{self, RepairedJson, ReportJson};
use crate::progress::ProgressLine;
use crate::{print, report};

const EXAMPLES: &str = "\
Nothing in DIR is changed, not even with --repair. A store that is being served is refused: copy it with
`sureq backup`, and check the copy.

Examples:
  sureq check ./sureq-data
  sureq check --json /var/lib/sureq | jq .findings
  sureq check ./sureq-data --repair ./sureq-saved

Exit codes:
  0   the store is sound; with --repair: everything was saved
  1   cannot check: no store, in use, cannot be read; OUT is not empty
  65  the store is damaged; with --repair: not everything could be saved, or not for sure";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArguments {
    /// The directory of the store, as DIR or `file:DIR`
    dir: PathBuf,
    /// Print one JSON object, with every queue, segment and finding
    #[arg(long)]
    json: bool,
    /// Build a new store in OUT (new or empty) from all sound tasks, and list lost ones
    #[arg(long, value_name = "OUT")]
    repair: Option<PathBuf>,
}

pub(crate) fn run(arguments: &CheckArguments) -> ExitCode {
    let dir = directory(&arguments.dir);
    match &arguments.repair {
        None => check(&dir, arguments.json),
        Some(out) => repair(&dir, &directory(out), arguments.json),
    }
}

/// The directory of an argument, which may be a URL (`file:DIR`).
pub(crate) fn directory(path: &Path) -> PathBuf {
    path.to_str().and_then(sureq::directory_of).unwrap_or_else(|| path.to_owned())
}

fn check(dir: &Path, as_json: bool) -> ExitCode {
    let mut line = ProgressLine::new();
    let checked = store::check(dir, &mut |what, done, total| line.show(what, done, total));
    drop(line);
    let report = match checked {
        Ok(report) => report,
        Err(error) => return cannot_check(dir, &error),
    };
    let text = if as_json { json::text(&ReportJson::from(&report)) } else { report::store(&report) };
    print::out(format_args!("{}", text.trim_end()));
    if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(exit::DAMAGED) }
}

fn repair(dir: &Path, out: &Path, as_json: bool) -> ExitCode {
    if store::is_within(out, dir) {
        let (out, dir) = (out.display(), dir.display());
        return failed(
            exit::CANNOT_START,
            format_args!("cannot write to {out}: it is inside {dir}; choose another directory"),
        );
    }
    let mut line = ProgressLine::new();
    let repaired = store::repair(dir, out, &mut |what, done, total| line.show(what, done, total));
    drop(line);
    let repaired = match repaired {
        Ok(repaired) => repaired,
        Err(error) if is_about(&error, out) => {
            return failed(
                exit::CANNOT_START,
                format_args!("{error}: choose another directory for the new store"),
            );
        }
        Err(error) => return cannot_check(dir, &error),
    };
    let text = if as_json {
        json::text(&RepairedJson::from(&repaired))
    } else {
        format!(
            "{}\nthe new store in {}:\n{}",
            report::repair(&repaired),
            out.display(),
            report::store(&repaired.report)
        )
    };
    print::out(format_args!("{}", text.trim_end()));
    let is_all = repaired.is_complete() && repaired.report.is_sound();
    if is_all { ExitCode::SUCCESS } else { ExitCode::from(exit::DAMAGED) }
}

/// Whether the error says that this directory is in use.
fn is_about(error: &StoreError, dir: &Path) -> bool {
    matches!(error, StoreError::InUse { path, .. } if path == dir)
}

/// Prints why the store cannot be checked.
fn cannot_check(dir: &Path, error: &StoreError) -> ExitCode {
    let dir = dir.display();
    match error {
        StoreError::InUse { .. } => failed(
            exit::CANNOT_START,
            format_args!("{error}: copy it with `sureq backup {dir} OUT`, and check the copy"),
        ),
        StoreError::NoStore => failed(exit::CANNOT_START, format_args!("{dir}: {error}")),
        _ => failed(exit::CANNOT_START, error),
    }
}

//! `sureq backup`: copies a store, also while it is served.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use sureq::store::{self, Backup, BackupError, Verify};

use crate::check::directory;
use crate::exit::{self, failed};
use crate::json::{self, BackupJson};
use crate::progress::ProgressLine;
use crate::{print, report};

const EXAMPLES: &str = "\
The store may be in use; it is only read. The copy is crash-consistent and contains everything confirmed before the
backup began. To restore it, serve it, or put it in the place of the store.

Examples:
  sureq backup ./sureq-data ./backup-today
  sureq backup --no-verify /var/lib/sureq /mnt/backup/sureq
  sureq backup ./sureq-data ./copy && sureq serve --home file:./copy --resp 127.0.0.1:0

Exit codes:
  0   the copy exists, and is sound
  1   there is no copy: no store, it cannot be read, OUT is not empty or cannot be written
  65  the copy exists, and is damaged as the store is
  75  there is no copy: the store changed faster than it could be copied; try again";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BackupArguments {
    /// The directory of the store, as DIR or `file:DIR`
    dir: PathBuf,
    /// Directory for the copy: new or empty
    out: PathBuf,
    /// Do not check the copy
    #[arg(long)]
    no_verify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &BackupArguments) -> ExitCode {
    let BackupArguments { no_verify, json, .. } = arguments;
    let (dir, out) = (&directory(&arguments.dir), &directory(&arguments.out));
    if store::is_within(out, dir) {
        let (out, dir) = (out.display(), dir.display());
        return failed(
            exit::CANNOT_START,
            format_args!("cannot write to {out}: it is inside {dir}; choose another directory"),
        );
    }
    let verify = if *no_verify { Verify::Trust } else { Verify::Check };
    let mut line = ProgressLine::new();
    let copied = store::backup(dir, out, verify, &mut |what, done, total| line.show(what, done, total));
    drop(line);
    match copied {
        Ok(backup) => print_backup(&backup, dir, out, *json),
        Err(error @ BackupError::TooFast { .. }) => failed(exit::TRY_AGAIN, error),
        Err(error) => failed(exit::CANNOT_START, format_args!("cannot back up {}: {error}", dir.display())),
    }
}

fn print_backup(backup: &Backup, dir: &Path, out: &Path, as_json: bool) -> ExitCode {
    let is_sound = backup.report.as_ref().is_none_or(store::Report::is_sound);
    if as_json {
        print::out(format_args!("{}", json::text(&BackupJson::from(backup))));
    } else {
        let (dir, out) = (dir.display(), out.display());
        let tasks =
            backup.report.as_ref().map_or_else(String::new, |report| format!("{} tasks, ", report.tasks()));
        let Backup { position, files, bytes, .. } = backup;
        let size = crate::format::size(*bytes);
        let checked = if backup.report.is_some() { "checked" } else { "not checked" };
        print::out(format_args!(
            "copied {dir} to {out}: position {position}, {tasks}{size} in {files} files, {checked}"
        ));
        if !is_sound && let Some(report) = &backup.report {
            print::out(format_args!("{}", report::store(report).trim_end()));
        }
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::from(exit::DAMAGED) }
}

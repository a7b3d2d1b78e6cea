//! `sureq clean`: requeues the tasks of dead clients in the keys of other programs on a Redis.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use clap::Args;
use sureq::{CleanReport, Cleaning, Home, Refusal};

use crate::client::time;
use crate::exit::{self, code_of, failed};
use crate::json::{self, CleanJson};
use crate::{print, signals};

const EXAMPLES: &str = "\
For queues that are shared with clients of redis-work-queue, Worqr or redis-queue. A sureq home that pops from such a
queue requeues the tasks of dead clients by itself. Use this command for queues that no sureq home pops from, and (--deep)
for tasks that only a scan of the whole database finds. A task is requeued only if it is found abandoned twice, a second
apart.

Examples:
  sureq clean 'redis://127.0.0.1:6379?layout=work-queue'
  sureq clean 'redis://127.0.0.1:6379?layout=worqr' emails invoices --deep
  sureq clean 'redis://127.0.0.1:6379?layout=redis-queue' --every 5s --json

Exit codes:
  0   all queues were cleaned; with --every: ended by a signal
  1   cannot clean: no such home, no answer, or a home that needs no cleaning
  75  not all queues could be cleaned; the output says which and why";

/// Shorter intervals would keep Redis busy with nothing else.
const EVERY_MIN: Duration = Duration::from_millis(10);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CleanArguments {
    /// The home, with `layout=`
    url: String,
    /// The queues to clean [default: all]
    queues: Vec<OsString>,
    /// Scan every key of the database for tasks that no list refers to, and for stale entries
    #[arg(long)]
    deep: bool,
    /// Repeat at this interval (500ms, 5s, 1m) until a signal arrives; print only changes
    #[arg(long, value_name = "TIME", value_parser = time)]
    every: Option<Duration>,
    /// Print one JSON object per line and run
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &CleanArguments) -> ExitCode {
    let home = match sureq::open(&arguments.url) {
        Ok(home) => home,
        Err(error) => return failed(code_of(&error), error),
    };
    home.warnings().iter().for_each(|warning| print::notice(warning));
    let code = match arguments.every {
        None => once(&home, arguments),
        Some(every) => again_and_again(&home, arguments, every.max(EVERY_MIN)),
    };
    // Closing a Redis home cannot lose anything.
    let _ = home.close();
    code
}

fn once(home: &Home, arguments: &CleanArguments) -> ExitCode {
    match clean(home, arguments) {
        Ok(report) if report.queues.iter().all(|queue| queue.outcome.is_ok()) => {
            print_report(&report, arguments);
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print_report(&report, arguments);
            ExitCode::from(exit::TRY_AGAIN)
        }
        Err(no @ Refusal::NotThere { .. }) => failed(exit::CANNOT_START, no),
        Err(no) => failed(exit::TRY_AGAIN, no),
    }
}

fn again_and_again(home: &Home, arguments: &CleanArguments, every: Duration) -> ExitCode {
    let (stop, stopped) = channel();
    signals::on_first(move || {
        // The receiver is gone only if the process is exiting.
        let _ = stop.send(());
    });
    loop {
        match clean(home, arguments) {
            Ok(report) => print_report(&report, arguments),
            Err(no @ Refusal::NotThere { .. }) => return failed(exit::CANNOT_START, no),
            // Retried after the interval.
            Err(no) => print::notice(&no.to_string()),
        }
        match stopped.recv_timeout(every) {
            Err(RecvTimeoutError::Timeout) => {}
            // Without signal handling it runs until it is killed.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(every),
            Ok(()) => return ExitCode::SUCCESS,
        }
    }
}

fn clean(home: &Home, arguments: &CleanArguments) -> Result<CleanReport, Refusal> {
    let queues: Vec<&[u8]> = arguments.queues.iter().map(|queue| queue.as_encoded_bytes()).collect();
    home.clean(&queues, if arguments.deep { Cleaning::Deep } else { Cleaning::Light })
}

fn print_report(report: &CleanReport, arguments: &CleanArguments) {
    if arguments.json {
        print::out(format_args!("{}", json::line(&CleanJson::from(report))));
        return;
    }
    let text = lines(report, arguments.every.is_some());
    if !text.is_empty() {
        print::out(format_args!("{}", text.trim_end()));
    }
}

/// A line for each queue, or only for those that changed.
fn lines(report: &CleanReport, is_brief: bool) -> String {
    let mut text = String::new();
    for queue in &report.queues {
        let name = queue.queue.escape_ascii();
        // Writing to a `String` does not fail.
        let _ = match &queue.outcome {
            Ok(cleaned) if cleaned.returned + cleaned.removed > 0 => {
                writeln!(text, "{name}: {} requeued, {} removed", cleaned.returned, cleaned.removed)
            }
            Ok(_) if is_brief => Ok(()),
            Ok(_) => writeln!(text, "{name}: nothing to do"),
            Err(no) => writeln!(text, "{name}: not cleaned: {no}"),
        };
    }
    if report.marks > 0 {
        let _ = writeln!(text, "{} stale marks of unique tasks removed", report.marks);
    }
    if text.is_empty() && !is_brief {
        text.push_str("no queues\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq::{Cleaned, CleanedQueue};

    #[test]
    fn a_single_run_lists_every_queue_and_a_repeated_one_only_changes() {
        let queue = |name: &str, outcome| CleanedQueue { queue: name.into(), outcome };
        let queues = vec![
            queue("a", Ok(Cleaned { returned: 2, removed: 1 })),
            queue("b", Ok(Cleaned::default())),
            queue("c", Err(Refusal::WorkerGone)),
        ];
        let report = CleanReport { queues, marks: 3 };
        let refused = format!("c: not cleaned: {}\n", Refusal::WorkerGone);
        let marks = "3 stale marks of unique tasks removed\n";
        let done = "a: 2 requeued, 1 removed\n";
        assert_eq!(lines(&report, false), format!("{done}b: nothing to do\n{refused}{marks}"));
        assert_eq!(lines(&report, true), format!("{done}{refused}{marks}"));
        assert_eq!(lines(&CleanReport::default(), false), "no queues\n");
        assert_eq!(lines(&CleanReport::default(), true), "");
    }
}

//! `sureq explain`: why a task is not running now.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use sureq::{Explanation, HeldUp, Holder, Home, StateKind, Why};

use super::error::CommandResult;
use super::output::{Output, name, or_null};
use super::{Common, Make, Typed};
use crate::exit;
use crate::format::{duration, number, relative};

#[derive(Args)]
#[command(after_help = "\
Exits with 4 if there is no such task.

Example:
  sureq explain emails 1764000000000-1")]
pub(crate) struct ExplainArguments {
    /// The queue
    queue: Typed,
    /// Id of the task
    id: Typed,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &ExplainArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| explain(arguments, home, output))
}

async fn explain(arguments: &ExplainArguments, home: Home, mut output: Output) -> CommandResult {
    let Some(explained) = home.queue(&arguments.queue).explain(&arguments.id).await? else {
        let why = format!(
            "no task {} in {}: it was finished, cancelled, deleted, expired or moved to another queue, or never existed",
            arguments.id, arguments.queue
        );
        return Ok(exit::failed(exit::NOTHING_THERE, why));
    };
    if output.is_json() {
        output.object(fields(&explained))?;
    } else {
        output.line(sentence(&explained))?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The fields of the JSON object: those of every task, then those of its state.
fn fields(explained: &Explanation) -> Vec<(&'static str, Value)> {
    let mut fields = vec![
        ("id", json!(explained.id.to_string())),
        ("state", json!(state_name(explained.state()))),
        ("why", json!(sentence(explained))),
        ("deliveries", json!(explained.deliveries)),
        ("failed", json!(explained.tries.failed)),
        ("lapsed", json!(explained.tries.lapsed)),
        ("lost", json!(explained.tries.lost)),
        ("tries_max", json!(explained.tries_max)),
        or_null!("reason", explained.reason.as_deref()),
    ];
    match &explained.why {
        Why::Ready { ahead, held_up } => {
            fields.push(("ahead", json!(ahead)));
            fields.extend(held_up_fields(*held_up));
        }
        Why::Delayed { until, in_ms, held_up } => {
            fields.extend([("due", json!(until)), ("due_in_ms", json!(in_ms))]);
            fields.extend(held_up_fields(*held_up));
        }
        Why::Leased { since, until, holder, cancelled } => {
            fields.extend([("taken_at", json!(since.0)), ("lease_ends", json!(until.map(|until| until.0)))]);
            fields.extend(holder_fields(explained, *holder));
            fields.push(("cancelled", json!(cancelled)));
        }
        Why::Dead { at } => fields.push(("died_at", json!(at.0))),
    }
    fields
}

fn held_up_fields(held_up: Option<HeldUp>) -> [(&'static str, Value); 3] {
    let (paused_at, leased, leased_max) = match held_up {
        None => (None, None, None),
        Some(HeldUp::Paused { since }) => (Some(since.0), None, None),
        Some(HeldUp::AllLeased { leased, max }) => (None, Some(leased), Some(max)),
    };
    [("paused_at", json!(paused_at)), ("leased", json!(leased)), ("leased_max", json!(leased_max))]
}

/// Incarnations are text: JSON numbers do not represent all of them exactly.
fn holder_fields(explained: &Explanation, holder: Option<Holder>) -> [(&'static str, Value); 3] {
    let (incarnation, connection) = match holder {
        None => (None, None),
        Some(Holder::Worker(incarnation)) => (Some(incarnation.to_string()), None),
        Some(Holder::Conn(conn)) => (None, Some(conn.0)),
    };
    let worker = or_null!("worker", explained.worker.as_deref());
    [worker, ("incarnation", json!(incarnation)), ("connection", json!(connection))]
}

const fn state_name(state: StateKind) -> &'static str {
    match state {
        StateKind::Ready => "ready",
        StateKind::Delayed => "delayed",
        StateKind::Leased => "leased",
        StateKind::Dead => "dead",
    }
}

fn sentence(explained: &Explanation) -> String {
    let tries = || format!("{} of {} tries", explained.tries.total(), explained.tries_max);
    let mut text = match &explained.why {
        Why::Ready { ahead, held_up } => match held_up {
            None => format!("ready, {} ahead", number(*ahead)),
            Some(held_up @ HeldUp::Paused { .. }) => {
                format!("{}; ready, {} ahead", held_up_text(*held_up), number(*ahead))
            }
            Some(held_up) => format!("ready, {} ahead, but {}", number(*ahead), held_up_text(*held_up)),
        },
        Why::Delayed { until, in_ms, held_up } => {
            let (due, span) = (date(*until), duration(Duration::from_millis(*in_ms)));
            let held_up = held_up.map(|held_up| format!("; {}", held_up_text(held_up)));
            format!("delayed until {due}, {span} from now{}", held_up.unwrap_or_default())
        }
        Why::Leased { since, until, holder, cancelled } => {
            let holder_text = holder.map_or(String::new(), |holder| holder_text(explained, holder));
            let end = match until {
                Some(until) => format!(", until {} ({})", date(until.0), relative(until.0)),
                None if holder.is_none() => " with no deadline".to_owned(),
                None => String::new(),
            };
            let cancelled = if *cancelled {
                "; cancelled: its worker learns it at its next heartbeat or extension"
            } else {
                ""
            };
            let since = relative(since.0);
            format!("leased{holder_text} {since}{end}, delivery {}{cancelled}", explained.deliveries)
        }
        Why::Dead { at } if explained.tries.total() < explained.tries_max => {
            format!("dead: buried {} after {}", relative(at.0), tries())
        }
        Why::Dead { at } => format!("dead: {}, died {}", tries(), relative(at.0)),
    };
    if !matches!(explained.why, Why::Leased { .. })
        && let Some(reason) = &explained.reason
    {
        text = format!("{text}, last reason: {}", name(reason));
    }
    text
}

fn held_up_text(held_up: HeldUp) -> String {
    match held_up {
        HeldUp::Paused { since } => format!("queue paused {}", relative(since.0)),
        HeldUp::AllLeased { leased, max } => format!("{} of {} leased", number(leased), number(max)),
    }
}

fn holder_text(explained: &Explanation, holder: Holder) -> String {
    match (holder, &explained.worker) {
        (Holder::Worker(incarnation), Some(worker)) => format!(" by {}#{incarnation}", name(worker)),
        (Holder::Worker(incarnation), None) => format!(" by worker #{incarnation}"),
        (Holder::Conn(conn), _) => format!(" by connection {}", conn.0),
    }
}

/// A point in time as text: 2030-01-31T12:00:00Z.
fn date(unix_ms: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    // A time beyond the calendar is shown as a number.
    time.filter(|_| unix_ms < YEAR_10000_MS)
        .map_or_else(|| unix_ms.to_string(), |time| humantime::format_rfc3339_seconds(time).to_string())
}

const YEAR_10000_MS: u64 = 253_402_300_800_000;

#[cfg(test)]
mod tests {
    use super::*;
    use sureq::Tries;
    use sureq_core::{LogTime, TaskId};

    fn explanation(why: Why) -> Explanation {
        let id = TaskId::new(1_764_000_000_000, 7).expect("it is an id");
        let tries = Tries { failed: 1, lapsed: 2, lost: 0 };
        let reason = Some(b"no\x1b[2Jaddress"[..].into());
        Explanation { id, deliveries: 4, tries, tries_max: 25, reason, worker: Some(b"w"[..].into()), why }
    }

    #[test]
    fn times_are_dates_in_text_and_numbers_in_json() {
        let until = 1_893_456_000_000;
        let delayed = explanation(Why::Delayed { until, in_ms: 3_600_000, held_up: None });
        let words = r"delayed until 2030-01-01T00:00:00Z, 1 h from now, last reason: no\x1b[2Jaddress";
        assert_eq!(sentence(&delayed), words);
        let json: serde_json::Map<_, _> =
            fields(&delayed).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(
            (&json["due"], &json["due_in_ms"], &json["lapsed"]),
            (&json!(until), &json!(3_600_000), &json!(2))
        );
        assert_eq!(json["paused_at"], Value::Null);
        assert_eq!(date(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn the_explanation_of_a_leased_task_has_all_fields() {
        let holder = Some(Holder::Worker(u64::MAX));
        let (since, until) = (LogTime(1), Some(LogTime(2)));
        let leased = explanation(Why::Leased { since, until, holder, cancelled: true });
        let text = sentence(&leased);
        assert!(text.starts_with("leased by w#18446744073709551615 "), "{text}");
        assert!(
            text.ends_with(
                ", delivery 4; cancelled: its worker learns it at its next heartbeat or extension"
            ),
            "{text}"
        );
        let wanted = [
            ("taken_at", json!(1)),
            ("lease_ends", json!(2)),
            ("worker", json!("w")),
            ("incarnation", json!("18446744073709551615")),
            ("connection", Value::Null),
            ("cancelled", json!(true)),
        ];
        assert!(fields(&leased).ends_with(&wanted), "{:?}", fields(&leased));
    }
}

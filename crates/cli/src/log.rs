//! Prints the log events of the library while a worker runs, one line each on standard error.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::print;

/// Prints the events of workers from level INFO, and all others of sureq from level WARN.
pub(crate) fn to_stderr() {
    // Another subscriber is installed already: it gets the events.
    let _ = tracing::subscriber::set_global_default(StderrLog);
}

struct StderrLog;

impl Subscriber for StderrLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_worker = target.starts_with("sureq::worker");
        let most = if is_worker { LevelFilter::INFO } else { LevelFilter::WARN };
        target.starts_with("sureq") && *metadata.level() <= most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        print::err(format_args!("sureq: {text}"));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as text: its message, then its fields in parentheses.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` does not fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let comma = if self.fields.is_empty() { "" } else { ", " };
            let _ = write!(self.fields, "{comma}{} {value:?}", field.name());
        }
    }
}

impl fmt::Display for EventText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.message.as_str(), self.fields.as_str()) {
            (message, "") => f.write_str(message),
            ("", fields) => f.write_str(fields),
            (message, fields) => write!(f, "{message} ({fields})"),
        }
    }
}

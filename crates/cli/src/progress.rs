//! Progress on standard error, if it is a terminal.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The interval of updates.
const EVERY: Duration = Duration::from_millis(200);

/// A line that is overwritten by each update.
pub(crate) struct ProgressLine {
    is_watched: bool,
    printed_at: Option<Instant>,
    began: Instant,
}

impl ProgressLine {
    pub(crate) fn new() -> ProgressLine {
        ProgressLine { is_watched: stderr().is_terminal(), printed_at: None, began: Instant::now() }
    }

    /// Prints the progress, at most once per interval: short work prints nothing.
    pub(crate) fn show(&mut self, what: &str, done: u64, total: u64) {
        let is_due = self.printed_at.unwrap_or(self.began).elapsed() >= EVERY;
        if !self.is_watched || !is_due {
            return;
        }
        self.printed_at = Some(Instant::now());
        let percent =
            (done * 100).checked_div(total).map_or(String::new(), |percent| format!(" {percent} %"));
        // Progress is lost without harm.
        let _ = write!(stderr(), "\r\x1b[K{what}{percent}").and_then(|()| stderr().flush());
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.printed_at.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// A bar with rate and remaining time, or a counter if the total is unknown. Removed on drop.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar up to `total`.
    pub(crate) fn of(total: u64, what: &str) -> Self {
        let bar = ProgressBar::new(total);
        Self::styled(bar, "{bar:30} {human_pos} of {human_len} {msg}, {per_sec}, {eta} left", what)
    }

    /// A counter without a total.
    pub(crate) fn counting(what: &str) -> Self {
        Self::styled(ProgressBar::new_spinner(), "{spinner} {human_pos} {msg}, {per_sec}", what)
    }

    /// A spinner for a single operation.
    pub(crate) fn waiting(what: &str) -> Self {
        Self::styled(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}", what)
    }

    fn styled(bar: ProgressBar, template: &str, what: &str) -> Self {
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(EVERY);
        Self(bar)
    }

    /// Sets the number of completed items.
    pub(crate) fn at(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

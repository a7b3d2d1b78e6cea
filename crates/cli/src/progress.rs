//! How far a long work has come, on standard error, where someone is watching.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

/// How often it is told.
const EVERY: Duration = Duration::from_millis(200);

/// A line that is written over and over.
pub(crate) struct Line {
    is_watched: bool,
    told: Option<Instant>,
    began: Instant,
}

impl Line {
    pub(crate) fn new() -> Line {
        Line { is_watched: stderr().is_terminal(), told: None, began: Instant::now() }
    }

    /// Tells it, if it is time: work that is done at once is not worth a word.
    pub(crate) fn tell(&mut self, what: &str, done: u64, total: u64) {
        let is_due = self.told.unwrap_or(self.began).elapsed() >= EVERY;
        if !self.is_watched || !is_due {
            return;
        }
        self.told = Some(Instant::now());
        let percent =
            (done * 100).checked_div(total).map_or(String::new(), |percent| format!(" {percent} %"));
        // Whoever has stopped watching misses nothing.
        let _ = write!(stderr(), "\r\x1b[K{what}{percent}").and_then(|()| stderr().flush());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.told.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

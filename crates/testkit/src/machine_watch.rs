//! Time limits that hold on a busy machine too.
//!
//! A test that says "within 200 ms" means the program's own time. On a machine with busy cores, a thread that is
//! ready waits for its turn, and that time is not the program's. A watch sleeps for a millisecond at a time beside
//! the test and adds up how late it wakes; a limit is extended by that sum. On an idle machine the sum is close to
//! zero, so that the limit is as strict as it reads.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(1);

/// Measures how late the machine runs threads, from its start on.
pub struct MachineWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    late_ns: AtomicU64,
}

impl MachineWatch {
    /// Starts to watch.
    pub fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while !shared.is_over.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    thread::sleep(INTERVAL);
                    let late = since.elapsed().saturating_sub(INTERVAL);
                    shared.late_ns.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// The total time that a ready thread has waited for its turn since the start.
    pub fn late(&self) -> Duration {
        Duration::from_nanos(self.shared.late_ns.load(Ordering::Relaxed))
    }

    /// Fails the test if `took` is longer than `bound`, apart from the delay of the machine.
    ///
    /// # Panics
    ///
    /// If it is.
    pub fn assert_within(&self, took: Duration, bound: Duration, what: impl Display) {
        let late = self.late();
        assert!(
            took < bound + late,
            "{what} took {took:?}, at most {bound:?}; the machine was late by {late:?}"
        );
    }
}

impl Drop for MachineWatch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "it took 3600s, at most 10ms")]
    fn a_delay_beyond_that_of_the_machine_fails() {
        let watch = MachineWatch::start();
        watch.assert_within(Duration::from_millis(5), Duration::from_millis(10), "it");
        watch.assert_within(Duration::from_secs(3_600), Duration::from_millis(10), "it");
    }
}

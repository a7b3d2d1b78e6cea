//! `sureq work --until-empty`: waits until the queues are empty, and prints what it waits for.

use std::time::{Duration, Instant};

use sureq::{Error, Home, Info, View, WorkerHandle};
use tokio::time::sleep;

use super::Typed;
use crate::format::{number, relative};
use crate::print;

/// The interval of checks, since a home does not signal that a queue is empty.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Remaining tasks are printed after this time without a running program, and then at this interval.
const REMIND_AFTER: Duration = Duration::from_secs(1);
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// Returns when no queue has ready, delayed or leased tasks, or with the error of a home that refuses to report that.
pub(super) async fn until_empty(queues: &[Typed], home: &Home, worker: &WorkerHandle) -> Result<(), Error> {
    let mut reminder = Reminder::default();
    loop {
        let (mut left, mut is_known) = (Vec::new(), true);
        for queue in queues {
            match home.queue(queue).info().await {
                Ok(info) if info.ready + info.delayed + info.leased > 0 => left.push((queue, info)),
                Ok(_) => {}
                Err(no @ Error::Refused(_)) => return Err(no),
                // The worker retries too, and reports the error.
                Err(_) => is_known = false,
            }
        }
        if left.is_empty() && is_known {
            return Ok(());
        }
        let is_busy = worker.status().is_none_or(|status| status.running + status.unconfirmed > 0);
        if is_known && reminder.is_due(is_busy, Instant::now()) {
            print_remaining(home, &left).await;
        }
        sleep(POLL_EVERY).await;
    }
}

async fn print_remaining(home: &Home, left: &[(&Typed, Info)]) {
    for (queue, info) in left {
        let next_due = if info.delayed > 0 {
            // Printed without the time if the home does not answer.
            let delayed = home.queue(queue).inspect(View::Delayed, 0, 1).await.unwrap_or_default();
            delayed.first().map(|task| task.at.0)
        } else {
            None
        };
        print::err(format_args!("sureq: waiting for {queue}: {}", remaining(info, next_due)));
    }
}

/// The remaining tasks of a queue as text.
fn remaining(info: &Info, next_due: Option<u64>) -> String {
    let mut parts = Vec::new();
    if info.ready > 0 {
        let paused = info.paused.map(|since| format!(", but paused {}", relative(since.0)));
        parts.push(format!("{} ready{}", number(info.ready), paused.unwrap_or_default()));
    }
    if info.delayed > 0 {
        let due = next_due.map(|due| format!(", the next due {}", relative(due)));
        parts.push(format!("{} delayed{}", number(info.delayed), due.unwrap_or_default()));
    }
    if info.leased > 0 {
        parts.push(format!("{} with other workers", number(info.leased)));
    }
    parts.join("; ")
}

/// Decides when remaining tasks are printed.
#[derive(Default)]
struct Reminder {
    idle_since: Option<Instant>,
    reminded_at: Option<Instant>,
}

impl Reminder {
    fn is_due(&mut self, is_busy: bool, now: Instant) -> bool {
        if is_busy {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        let is_due = now - since >= REMIND_AFTER
            && self.reminded_at.is_none_or(|reminded_at| now.duration_since(reminded_at) >= REMIND_EVERY);
        if is_due {
            self.reminded_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_core::LogTime;

    #[test]
    fn remaining_tasks_are_printed_after_an_idle_second_and_then_every_minute() {
        let (began, mut reminder) = (Instant::now(), Reminder::default());
        let mut is_due = |is_busy, ms| reminder.is_due(is_busy, began + Duration::from_millis(ms));
        assert!(!is_due(false, 0) && !is_due(false, 999) && is_due(false, 1_000));
        assert!(!is_due(false, 60_999) && is_due(false, 61_000));
        assert!(!is_due(true, 200_000) && !is_due(false, 200_500), "running programs reset the time");
        assert!(!is_due(false, 201_400) && is_due(false, 201_500));
    }

    #[test]
    fn remaining_tasks_are_counted_by_state() {
        let mut info = Info { delayed: 1, ..Info::default() };
        let soon = std::time::SystemTime::now() + Duration::from_secs(7_230);
        let due = soon.duration_since(std::time::UNIX_EPOCH).expect("it is later").as_millis() as u64;
        assert_eq!(remaining(&info, Some(due)), "1 delayed, the next due in 2 h");
        (info.delayed, info.ready, info.leased) = (0, 2_000, 3);
        assert_eq!(remaining(&info, None), "2,000 ready; 3 with other workers");
        info.paused = Some(LogTime(due));
        assert_eq!(remaining(&info, None), "2,000 ready, but paused in 2 h; 3 with other workers");
    }
}

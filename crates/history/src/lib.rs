//! Checks from the requests and replies of clients whether a queue kept its promises.
//!
//! Clients record every operation: when it is *invoked*, before the request is sent, and how it *completed*:
//! [`Outcome::Ok`], [`Outcome::Failed`] (it certainly had no effect) or [`Outcome::Unknown`] (the reply was lost, so
//! that it had an effect or not). [`History::findings`] then counts violations:
//!
//! ```
//! use sureq_history::{Delivery, Findings, History, Outcome, Time};
//!
//! let mut history = History::default();
//! let push = history.invoke_push(2);
//! history.complete_push(push, Outcome::Ok);
//! let (first, second) = (push.first, push.first + 1);
//! history.deliver(&Delivery::untimed(first));
//! history.invoke_finish(first);
//! history.complete_finish(first, Outcome::Ok, Time::now());
//! // The queue reports that it is empty.
//! assert_eq!(history.findings(0), Findings { lost: 1, ..Findings::default() }, "{second}");
//! ```
//!
//! A finding is never a false alarm: it is reported only if the history is illegal for all outcomes of the unknown
//! operations, and for all moments between request and reply at which the operations may have taken effect. Therefore
//! a violation may go unnoticed, but a legal history is never reported.
//!
//! * `entry`: the state of one task, in one byte.
//! * `holds`: when a client certainly held a task, and when its finish was confirmed; only for leases with a time.
//! * [`payload`]: payloads that identify their task.
//! * `time`: the machine's monotonic clock, the same for all processes.

mod entry;
mod findings;
mod history;
mod holds;
pub mod payload;
mod shared;
mod time;

pub use findings::{Counts, Findings};
pub use history::{Delivery, History, Outcome, Push, Seen};
pub use holds::EPSILON;
pub use shared::SharedHistory;
pub use time::Time;

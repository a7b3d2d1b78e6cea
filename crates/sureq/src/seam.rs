//! The seam between those who speak for others and a home: [`Home::execute`](crate::Home::execute) takes a batch of [`Command`]s
//! and answers [`Replies`], which may leave once their [`Position`] is durable, or a [`Ticket`] for what has to be waited for.
//!
//! Servers are built on this. Programs that push and work have [`Queue`](crate::Queue) and the worker.
//!
//! ```
//! use sureq::seam::{Command, Replies, command::Pop};
//!
//! let home = sureq::open("mem:")?;
//! let mut replies = Replies::default();
//! let push = Command::Push { queue: b"emails", payloads: &[b"hello"] };
//! let pop = Command::Pop(Pop::plain(&[b"emails"], 1));
//! let executed = home.execute(&[push, pop], &mut replies);
//! assert!(home.wait(executed.position), "only now is it durable");
//! assert_eq!(replies.tasks[0].body.as_ref(), b"hello");
//! # Ok::<(), sureq::OpenError>(())
//! ```

pub use crate::home::{Answer, Executed, Listener, Ticket};
pub use sureq_core::broker::glob_matches;
pub use sureq_core::{Command, LogTime, Now, Receipt, Replies, Reply, TaskId, command, notice, reply};
pub use sureq_seam::{Heard, Notice, NoticeTasks, Position};

#[cfg(not(feature = "embedded"))]
pub use crate::body::Body;
#[cfg(feature = "embedded")]
pub use sureq_engine::Body;

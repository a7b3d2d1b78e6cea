//! The contract between homes and their callers, for programs that implement a server or a home.
//!
//! [`Home`] is the trait. [`crate::Home::api`] returns the implementation behind a handle, [`crate::Home::from_api`]
//! makes a handle from an implementation. Programs that push and work use [`Queue`](crate::Queue) and
//! [`Worker`](crate::Worker) instead.
//!
//! ```
//! use sureq::home_api::{Command, Replies, command::Pop};
//!
//! let home = sureq::open("mem:")?;
//! let mut replies = Replies::default();
//! let push = Command::Push { queue: b"emails", payloads: &[b"hello"] };
//! let pop = Command::Pop(Pop::plain(&[b"emails"], 1));
//! let submitted = home.api().execute(&[push, pop], &mut replies);
//! assert!(home.api().wait(submitted.position), "only now may the replies be sent");
//! assert_eq!(replies.tasks[0].body.as_ref(), b"hello");
//! # Ok::<(), sureq::OpenError>(())
//! ```

pub use sureq_core::{
    Command, LogTime, Now, Receipt, Refusal, Replies, Reply, TaskId, command, notice, reply,
};
pub use sureq_home_api::{
    Answer, Broken, Flow, Home, ListenEvent, Listener, Notice, NoticeQueue, NoticeSource, NoticeTasks,
    Payload, Pending, Position, Status, Submitted, Ticket, by_queue, elsewhere, wait,
};

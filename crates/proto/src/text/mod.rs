//! DefferedQ's dialect, byte for byte: one line per request, one line per reply, simple enough for netcat.
//!
//! | request | reply |
//! |---|---|
//! | `ADD <ms> <body>` | `TASK <id> DELAY <ms>ms` |
//! | `RESERVE` | `TASK <id> BODY <body>` or `nil` |
//! | `DELETE <id>`, `RETURN <id> <ms>` | `ok` or `unknown TASK_ID` |
//! | `STATS` | `TASKS <n> RESERVED <n> CONNECTIONS <n> HEAP <mib>m` |
//!
//! All its tasks are in one queue, [`QUEUE`].

mod encode;
mod lines;
mod reply_form;
mod request;

pub use encode::{Gauges, encode_complaint, encode_reply};
pub use lines::{Close, Item, Limits, ParsedLine, Parser};
pub use reply_form::TextReplyForm;
pub use request::{Complaint, Request, ReservationPolicy};

/// The name in other dialects of the queue that this dialect uses.
pub const QUEUE: &[u8] = b"default";

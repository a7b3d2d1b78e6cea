//! Bytes to commands, and replies to bytes: the two dialects that sureq speaks over a socket.
//!
//! Nothing here reads or writes a socket, waits, or knows a queue. A dialect borrows the read buffer, says which
//! [`Command`](sureq_core::command::Command)s are in it, and later appends what the home answered to a write
//! buffer. Input is hostile: it costs memory only as it arrives, and each byte is looked at a bounded number of
//! times.
//!
//! The map:
//!
//! * [`resp`]: the framing of RESP2 and RESP3, requests in, replies out.
//! * [`verbs`]: one table of the RESP commands, and what their words mean.
//! * [`write_reply`]: the pieces of a reply, for whoever writes them. [`encode_reply`], [`encode_part`], [`encode_answer`],
//!   [`encode_hello`]: the replies in RESP.
//! * [`encode_command`], [`decode_reply`]: the other side, for who asks a server.
//! * [`channel`]: what a subscriber can hear. [`encode_message`], [`encode_change`], [`encode_pong`]: what it is sent.
//! * [`text`]: DefferedQ's dialect, whole.
//! * [`decimal`]: numbers as both of them spell them.
//!
//! ```
//! use sureq_core::command::ConnId;
//! use sureq_proto::resp::{Args, Limits, Parser, Version};
//! use sureq_proto::verbs::{self, Caller, Request};
//!
//! let (buffer, mut unquoted, mut args) = (b"ECHO hi\r\n*1\r\n$4\r\nPING\r\n", Vec::new(), Args::default());
//! Parser::new(Limits::TRUSTED).parse(buffer, &mut unquoted, &mut args)?;
//!
//! let mut out = Vec::new();
//! for argv in args.iter() {
//!     match verbs::parse(argv, Caller { conn: ConnId(1) })? {
//!         Request::Home { .. } => unreachable!("none of them is about a queue"),
//!         Request::Session(command) => assert!(sureq_proto::encode_answer(&mut out, Version::Resp2, &command)),
//!     }
//! }
//! assert_eq!(out, b"$2\r\nhi\r\n+PONG\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod ask;
pub mod channel;
pub mod decimal;
mod guard;
mod pubsub;
mod reply;
pub mod resp;
mod session;
pub mod text;
pub mod verbs;

pub use answer::{Expected, decode_refusal, decode_reply};
pub use ask::{Unsayable, encode_command};
pub use pubsub::{Change, encode_change, encode_message, encode_pong};
pub use reply::{Part, encode_part, encode_reply, write_reply};
pub use session::{Greeting, encode_answer, encode_hello};

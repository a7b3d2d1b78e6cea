//! Encoding and decoding of the two dialects that a server speaks: bytes to commands, and replies to bytes.
//!
//! This crate does no I/O and keeps no queues. A parser borrows the read buffer and finds the
//! [`Command`](sureq_core::command::Command)s in it; an encoder appends the home's replies to a write buffer. Input
//! is untrusted: it costs memory only as it arrives, and each byte is examined a bounded number of times.
//!
//! The modules and their main items:
//!
//! * [`resp`]: the framing of RESP2 and RESP3, for requests and replies.
//! * [`verbs`]: one table of the RESP commands, from which parsing, help and documentation follow.
//! * [`ReplyForm`]: the part of a command that is needed to write or read its reply.
//! * [`write_reply`], [`encode_reply`], [`encode_part`]: encode replies of a home. [`encode_answer`],
//!   [`encode_hello`]: encode replies that a session gives itself.
//! * [`encode_command`], [`decode_reply`]: the client's side.
//! * [`channel`]: the names of notification channels. [`encode_message`], [`encode_change`], [`encode_pong`]:
//!   messages to subscribers.
//! * [`text`]: DefferedQ's dialect.
//! * [`decimal`]: decimal numbers as both dialects write them.
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

pub mod channel;
mod command_encoder;
pub mod decimal;
mod guard;
mod pubsub;
mod reply_decoder;
mod reply_encoder;
mod reply_form;
pub mod resp;
mod session;
pub mod text;
pub mod verbs;

pub use command_encoder::{Inexpressible, encode_command};
pub use pubsub::{Change, encode_change, encode_message, encode_pong};
pub use reply_decoder::{decode_refusal, decode_reply};
pub use reply_encoder::{Part, encode_part, encode_reply, write_reply};
pub use reply_form::{PopFields, ReplyForm, ReplyStyle, Words};
pub use session::{HelloFields, encode_answer, encode_hello};

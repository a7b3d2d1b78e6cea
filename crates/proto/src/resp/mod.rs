//! RESP, the protocol of Redis clients: requests and replies in versions 2 and 3, encoding and decoding.
//!
//! This module does the framing only. [`crate::verbs`] interprets the words of commands, [`crate::decode_reply`] the
//! replies.

mod args;
mod error;
mod inline;
mod parser;
mod replies;
mod writer;

pub use args::{Args, recycle};
pub use error::ProtocolError;
pub use parser::{Limits, Parser, Progress};
pub use replies::{BadReply, Piece, PieceReader, Scanner};
pub use writer::{Pieces, Version, Writer, harmless};

//! RESP, the protocol of Redis' clients: requests and replies, in version 2 and 3, both ways.
//!
//! Framing only: what the words mean stands in [`crate::verbs`], and what replies mean in [`crate::decode_reply`].

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

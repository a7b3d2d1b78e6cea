//! RESP, the protocol of Redis' clients: requests in, replies out, in version 2 and 3.
//!
//! Framing only: what the words mean stands in [`crate::verbs`].

mod args;
mod error;
mod inline;
mod parser;
mod writer;

pub use args::{Args, recycle};
pub use error::ProtocolError;
pub use parser::{Limits, Parser, Progress};
pub use writer::{Pieces, Version, Writer, harmless};

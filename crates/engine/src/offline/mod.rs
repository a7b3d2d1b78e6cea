//! Work on the files of a store without executing commands.
//!
//! - [`check`] reports whether a store is sound.
//! - [`repair`] saves as much as possible of a damaged store into a new one.
//! - [`backup`] copies a store that may be in use.
//! - `unfinished` marks a copy that is not complete yet.

pub mod backup;
pub mod check;
pub mod repair;
pub(crate) mod unfinished;

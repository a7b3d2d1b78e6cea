//! Work on the files of a store without executing commands.
//!
//! - [`check`] reports whether a store is sound, [`repair`] saves what can be saved of one that is not, and [`backup`]
//!   copies one that may be running. `unfinished` marks a copy that is being made.

pub mod backup;
pub mod check;
pub mod repair;
pub(crate) mod unfinished;

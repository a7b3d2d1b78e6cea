//! Pops that wait, and the messages that wake them.

pub(crate) mod index;
pub(crate) mod listener;
pub(crate) mod serving;
pub(crate) mod subscription;
pub(crate) mod waiters;

//! The servers: which there are, which of them owns a queue, and how calls reach them.

pub(crate) mod abandonment;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod target;
pub(crate) mod topology;

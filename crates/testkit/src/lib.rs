//! Placeholder.

pub mod sim_disk;

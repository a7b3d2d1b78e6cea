//! The module in real servers: what Redis does to keys, and what clients, replicas and files do to the module.

mod blocked;
mod faults;
mod hostile;
mod native;
mod persistence;
mod renames;
mod replication;
mod slices;
mod support;
mod workers;

//! The module in real servers: key operations of Redis, and the effects of clients, replicas and files on the module.

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

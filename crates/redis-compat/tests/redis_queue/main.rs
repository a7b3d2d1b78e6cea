//! `layout=redis-queue` on a real Redis, together with the commands of redis-queue's own clients, sent raw.

#[path = "../support/mod.rs"]
mod common;

mod cleaning;
mod faults;
mod support;
mod tasks;
mod waiting;

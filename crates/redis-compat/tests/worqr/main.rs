//! `layout=worqr` on a real Redis, together with the commands of Worqr's own clients, sent raw.

#[path = "../support/mod.rs"]
mod common;

mod channels;
mod cleaning;
mod faults;
mod support;
mod tasks;
mod their_cleanup;
mod waiting;
mod workers;

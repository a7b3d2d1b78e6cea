//! `layout=work-queue` on a real Redis, beside the published crate `redis-work-queue` and beside its commands, sent
//! raw.

#[path = "../support/mod.rs"]
mod common;

mod cleaning;
mod commands;
mod shared;
mod support;
mod waiting;

//! `layout=work-queue` on a real Redis, together with the published crate `redis-work-queue` and with its commands,
//! sent raw.

#[path = "../support/mod.rs"]
mod common;

mod cleaning;
mod commands;
mod shared;
mod support;
mod waiting;

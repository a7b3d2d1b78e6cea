//! A Redis with a home in the layout of another program.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

#[path = "../../../redis-home/tests/support/mod.rs"]
mod base;
pub mod shop;
pub mod waiting;

pub use base::*;

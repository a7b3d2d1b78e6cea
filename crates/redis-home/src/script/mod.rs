//! The Lua script: how it is loaded, called and answered.

pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod operations;
pub(crate) mod runner;
pub(crate) mod slices;

//! The worker, in one process with its home: arguments of handlers, their outcomes, and leases in all cases. Crashes
//! of workers and servers are in the tests of the command.

mod arguments;
mod at_most_once;
mod layers;
mod leases;
mod names;
mod outcomes;
mod sharing;
mod status;
mod stopping;
mod streams;
mod support;

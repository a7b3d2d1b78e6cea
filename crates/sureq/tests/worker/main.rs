//! The worker, in one process with its home: what handlers get, what becomes of what they return, and what holds whatever
//! they do. Crashes of workers and servers are played in the tests of the command.

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

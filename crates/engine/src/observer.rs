//! An observer of all states of a store, for simulations.

use std::fmt;

use sureq_core::Broker;

use crate::log::Position;
use crate::payload::body::Body;

/// Sees all states that a store goes through. It is called under the state lock, so it must not call the engine.
pub trait Observer: fmt::Debug + Send + Sync {
    /// The store was read from its files: all events before the position are in the state. It has not started yet.
    fn recovered(&self, position: Position, broker: &Broker<Body>);

    /// A command, a slice of one, or a step of time is complete. Its events are before the position, and a crash keeps
    /// all of them or none.
    fn changed(&self, position: Position, broker: &Broker<Body>);
}

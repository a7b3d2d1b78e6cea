//! Keeps the store small: takes checkpoints, copies old tasks forward, removes segments.
//!
//! - `compactor` is the thread that decides what is due. `snapshot` takes the image of the state that a checkpoint
//!   stores.
//! - `forward` copies tasks out of old segments. `live` counts the live payloads of each segment.

pub(crate) mod compactor;
pub(crate) mod forward;
pub(crate) mod live;
pub(crate) mod snapshot;

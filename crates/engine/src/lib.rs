//! The embedded home: a queue in a directory.
//!
//! The map, from the outside in:
//!
//! * [`engine`]: opening and closing a store. `submit`: executing commands, as the contract with dialects has it.
//! * `shared`: what its threads share, under one lock.
//! * `line`: pops that wait, in order of arrival. `durable`: replies that wait, by position.
//! * `listener`: subscriptions to notices. `notes`: what the events of a command publish.
//! * `giant`: room for commands that are larger than a segment. `sliced`: commands about very many tasks, piece by piece.
//!   `prepared`: large payloads, encoded before the lock is taken. `meter`: what is done under it, for tests.
//! * `tape` takes down what the broker decides; `log_thread` writes it, `ticker` lets time pass, `keeper` prepares.
//! * `body`: where a payload lies. `payloads` finds those of a reply, in the `cache` or by the `loader`, who reads them
//!   from the disk, `ahead` of need if possible; `ticket` is what their taker gets meanwhile.
//! * `tidier` keeps the store small: `snapshot` is what a checkpoint holds, `forward` copies old tasks, `live` knows what
//!   each segment still holds, `synced` how much is on disk whatever was promised. `recorded`: which payloads a frame holds.
//!   `placement` verifies in debug builds that tasks know where those lie.
//! * `opening`: from a directory to a broker that is ready to serve. `status`: how it is doing.
//! * [`log`]: segments, frames, recovery. [`store`]: the few numbers that never go back. [`checkpoint`]: states to start
//!   from.
//! * [`check`]: whether a store is sound. [`repair`]: what can be saved of one that is not. [`backup`]: a copy of one that
//!   is running, `unfinished` the mark of one that is being made. `failpoint`: where a test can end the process.
//! * `observer`: someone who sees all states, for simulations.
//! * [`disk`], [`clock`]: the only doors to the machine. [`fault`]: what goes wrong there.

pub mod backup;
pub mod check;
pub mod checkpoint;
pub mod clock;
pub mod disk;
pub mod engine;
pub mod fault;
pub mod log;
pub mod repair;
pub mod store;

mod ahead;
mod batch;
mod body;
mod cache;
mod durable;
mod failpoint;
mod forward;
mod giant;
mod keeper;
mod line;
mod listener;
mod live;
mod loader;
mod log_thread;
mod meter;
mod notes;
mod observer;
mod opening;
mod payloads;
mod placement;
mod prepared;
mod recorded;
mod seek;
mod shared;
mod sliced;
mod snapshot;
mod status;
mod stretch;
mod submit;
mod synced;
mod tape;
mod ticker;
mod ticket;
mod tidier;
mod unfinished;
mod unreadable;

pub use body::{Body, Stored};
pub use engine::{CACHE_BYTES, Engine, Options};
pub use line::OwnedPop;
pub use meter::Held;
pub use observer::Observer;

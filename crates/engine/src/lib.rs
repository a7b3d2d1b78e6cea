//! The embedded home: a queue in a directory.
//!
//! The map, from the outside in:
//!
//! * [`engine`]: opening a store, executing commands, waiting for tasks, closing.
//! * `line`: pops that wait, in order of arrival. `durable`: replies that wait, by position.
//! * `tape` takes down what the broker decides; `log_thread` writes it, `ticker` lets time pass, `keeper` prepares.
//! * `opening`: from a directory to a broker that is ready to serve.
//! * [`log`]: segments, frames, recovery. [`store`]: the few numbers that never go back.
//! * [`disk`], [`clock`]: the only doors to the machine. [`fault`]: what goes wrong there.

pub mod clock;
pub mod disk;
pub mod engine;
pub mod fault;
pub mod log;
pub mod store;

mod body;
mod durable;
mod keeper;
mod line;
mod log_thread;
mod opening;
mod tape;
mod ticker;

pub use body::Body;
pub use engine::{Engine, Executed, Options, Ticket};
pub use line::{Answer, OwnedPop};

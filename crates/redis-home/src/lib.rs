//! Queues on your own Redis or Valkey, without a server of sureq: each command is one script, and atomic.
//!
//! The map:
//! - [`RedisHome`] is the home; [`Target`] is where its Redis is, read from a URL. `thread` executes the commands, on a
//!   thread of its own; `spread` does so for commands about several hash slots of a cluster.
//! - `connection`: `link` sends calls to the server that owns their queue, and repeats only those that were not
//!   executed. `topology` knows which server that is: the only one, the primary that sentinels name, or the owner of
//!   a hash slot (crate `sureq-slots`). `node` is one server.
//! - `script`: `call` declares the operations and turns a command into a call of the Lua script, `operations` finds
//!   their arguments by name, `answer` turns the answer into a reply, `slices` splits large commands, `runner` loads
//!   the script. `clock` carries log time from one call to the next, since Redis has no clock that cannot be set.
//! - `waiting`: a script cannot wait, so a pop that finds nothing joins the `waiters`; a Pub/Sub message
//!   (`subscription`) or the deadline that a script reported wakes it. `serving` keeps the order between commands and
//!   waiters. `listener` receives the messages of scripts.
//! - [`layout`] has everything that depends on the keys of a queue. The layouts of other programs are in the crate
//!   `sureq-redis-compat`.
//!
//! docs/reference/redis-keys.md lists the keys.
#![forbid(unsafe_code)]

mod connection;
mod home;
pub mod layout;
mod script;
mod spread;
mod thread;
mod waiting;

pub use connection::target::{BadTarget, Target};
pub use home::{OpenError, RedisHome};
pub use script::clock::{Clock, SystemClock};

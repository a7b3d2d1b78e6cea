//! Queues on your own Redis or Valkey, without a server of sureq: each command is one script, and atomic.
//!
//! The map:
//! - [`RedisHome`] (`home`) is the home. `thread` executes the commands, on a thread of its own; `spread` does so for
//!   commands about several hash slots of a cluster.
//! - `connection`: [`Target`] (`target`) is where Redis is, read from a URL. `link` sends calls to the server that owns
//!   their queue, and repeats only those that were not executed. `topology` knows which server that is: the only one,
//!   the primary that sentinels name, or the owner of a hash slot (the crate `sureq-slots`). `node` is one server.
//!   `abandonment` ends all waiting for answers when the home is closed.
//! - `script`: `call` declares the operations and turns a command into a call of the Lua script, `operations` finds
//!   their arguments by name, `answer` turns the answer into a reply, `slices` splits large commands, `runner` loads
//!   the script. `clock` carries log time from one call to the next, since Redis has no clock that cannot be set.
//! - `waiting`: a script cannot wait, so a pop that finds nothing joins the `waiters`; a Pub/Sub message
//!   (`subscription`) or the deadline that a script reported wakes it. `serving` keeps the order between commands and
//!   waiters, and `index` finds a waiter by arrival, queue or timeout. `listener` receives the messages of scripts.
//! - [`layout`] has everything that depends on the keys of a queue: `own` is sureq's layout, `keys` and `channels` name
//!   keys and channels, `options` are those of a URL, `deliveries` remembers recent deliveries of foreign ids,
//!   `services` are what a session may ask of its home. The layouts of other programs are in the crate
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

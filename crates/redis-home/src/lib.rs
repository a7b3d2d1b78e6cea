//! Queues on your own Redis or Valkey, with no server of ours between: each command is one script, and atomic.
//!
//! The map:
//! - [`RedisHome`] executes commands and gives tickets for their answers; [`Target`] says where, and is read from a URL.
//! - `call` turns a command into the call of a script, `answer` what the script answers into a reply. The script is
//!   `lua/queue.lua`.
//! - `layout` says what depends on the keys: the default has keys of our own; `work_queue`, `worqr` and `redis_queue` share
//!   those of other programs with their clients, each by a script of its own in `lua/`. `foreign` is what they have in common,
//!   `cleaning` how what was taken and will not be finished comes back, `handed` how it goes back if it reached nobody.
//! - `link` is the connection: it loads the script where it is missing, and connects again when it is lost.
//! - `line` is where pops wait. A script cannot: whoever waits is woken by a message, or by the time that a script named.
//! - `listener` hears what scripts publish of what they did; `channels` are the names.
//! - `clock` carries log time from one script to the next, since Redis has no clock that cannot be set.
//!
//! docs/redis-keys.md lists what stands in Redis.
#![forbid(unsafe_code)]

mod answer;
mod call;
mod channels;
mod cleaning;
mod clock;
mod foreign;
mod handed;
mod home;
mod layout;
mod line;
mod link;
mod listener;
mod redis_queue;
mod target;
mod ticket;
mod work_queue;
mod worqr;

pub use cleaning::{CleanReport, Cleaned, CleanedQueue, Cleaning};
pub use clock::{Clock, SystemClock};
pub use home::{OpenError, RedisHome};
pub use listener::Listener;
pub use redis_queue::SafeTask;
pub use target::{BadTarget, Target};
pub use ticket::{Answer, Ticket};

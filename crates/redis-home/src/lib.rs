//! Queues on your own Redis or Valkey, with no server of ours between: each command is one script, and atomic.
//!
//! The map:
//! - [`RedisHome`] is the home; [`Target`] says where, and is read from a URL.
//!   `thread` does what the home is asked, on a thread of its own.
//! - `call` turns a command into the call of a script, `answer` what the script answers into a reply. The script is
//!   `lua/queue.lua`; `runner` is how it is loaded.
//! - `layout` says what depends on the keys, `keys` spells them: the default has keys of our own; `work_queue`, `worqr` and
//!   `redis_queue` share those of other programs with their clients, each by a script of its own in `lua/`. `foreign` is what
//!   they have in common, `cleaning` how what was taken and will not be finished comes back, `handed` how it goes back if it
//!   reached nobody.
//! - `link` sends calls to the server that has their queue, and again only what was not done. `fleet` knows which server that
//!   is, of one, of a cluster by `slots`, or by asking sentinels; `node` is one of them. `spread` is what spans several.
//! - `line` is where pops wait, `waiters` who does. A script cannot: whoever waits is woken by a message (`hearing`), or by the
//!   time that a script named.
//! - `listener` receives what scripts publish; `channels` names the channels.
//! - `clock` carries log time from one script to the next, since Redis has no clock that cannot be set.
//!
//! docs/reference/redis-keys.md lists what stands in Redis.
#![forbid(unsafe_code)]

mod answer;
mod call;
mod channels;
mod cleaning;
mod clock;
mod cut;
mod fleet;
mod foreign;
mod handed;
mod hearing;
mod home;
mod keys;
mod layout;
mod line;
mod link;
mod listener;
mod node;
mod redis_queue;
mod runner;
mod serving;
mod slices;
mod slots;
mod spread;
mod target;
mod thread;
mod waiters;
mod work_queue;
mod worqr;

pub use clock::{Clock, SystemClock};
pub use home::{OpenError, RedisHome};
pub use redis_queue::SafeTask;
pub use target::{BadTarget, Target};

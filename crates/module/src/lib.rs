//! The queue inside Redis: RQ.* as native commands on a native type, loaded with `--loadmodule libsureq_module.so`.
//!
//! A key holds one [`sureq_core::Queue`]; the words and replies are those of [`sureq_proto`]. Redis finds the key, keeps the
//! line of those who wait, writes snapshots and the log, and feeds replicas. What is decided here reaches the log and
//! replicas as effects, `RQ.APPLY key <events>`, so that no clock but the primary's has a say.
//!
//! The map:
//!
//! * `load`: what the server is told when it loads this. `commands`: from words to a queue and back; `pop`: handing out, and
//!   waiting; `waiting`: who waits in the name of a worker.
//! * `sliced`: commands whose work grows with the number of tasks, a slice at a time; `ends`: the same for the tasks of
//!   workers and connections that are gone.
//! * `keyed`: one step of one queue, and all that follows from it. `effects`: what is recorded of it; `apply`: the same,
//!   taken in.
//! * `object`: what a key holds; `saved`: its bytes in a snapshot. `payload`: a task's bytes.
//! * `process`: what spans keys: time, ids, incarnations. `schedule`: what happens by itself, and when; `tick` has it happen.
//! * `workers`: the workers of a database, in a key of their own. `slot`: where a cluster keeps a key.
//! * `redis`, `allocator`, `callbacks`: the doors to the C API, and all the unsafe code there is. `guard`: no panic gets out.

mod allocator;
mod apply;
mod callbacks;
mod commands;
mod effects;
mod ends;
mod followers;
mod guard;
mod keyed;
mod load;
mod object;
mod payload;
mod pop;
mod process;
mod redis;
mod saved;
mod schedule;
mod sliced;
mod slot;
mod tick;
mod waiting;
mod workers;

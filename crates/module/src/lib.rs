//! The queue inside Redis: RQ.* as native commands on a native type, loaded with `--loadmodule libsureq_module.so`.
//!
//! A key holds one [`sureq_core::Queue`]; commands are parsed and replies are written by [`sureq_proto`]. Redis finds
//! the key, keeps the blocked clients in order, writes snapshots and the log, and feeds replicas. Decisions of this
//! module reach the log and replicas as effects, `RQ.APPLY key <events>`, so that only the primary's clock decides.
//!
//! The modules:
//!
//! * `load`: registers types, commands and callbacks with the server. `commands`: parses and executes commands; `pop`:
//!   delivery and blocking; `waiting`: clients that wait in the name of a worker.
//! * `sliced`: commands whose work grows with the number of tasks, a slice at a time; `ends`: the same for the tasks of
//!   workers and connections that ended.
//!   `lists`: the slices of commands that name many tasks.
//! * `keyed`: one step of one queue and its consequences. `effects`: records a step; `apply`: replays one; `followers`:
//!   whether anyone needs the records.
//! * `object`: the value of a key; `saved`: its bytes in a snapshot. `payload`: the bytes of a task.
//! * `process`: state that spans keys: time, ids, incarnations. `schedule`: deadlines; `tick`: executes due work.
//! * `workers`: the workers of a database, in a key of their own.
//! * `redis`, `allocator`, `callbacks`: the C API, and all unsafe code. `guard`: keeps panics from unwinding into
//!   Redis.

mod allocator;
mod apply;
mod callbacks;
mod commands;
mod effects;
mod ends;
mod followers;
mod guard;
mod keyed;
mod lists;
mod load;
mod object;
mod payload;
mod pop;
mod process;
mod redis;
mod saved;
mod schedule;
mod sliced;
mod tick;
mod waiting;
mod workers;

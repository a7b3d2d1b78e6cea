//! Shared test support: scenarios, doubles for disk and clock, clients and processes.
//!
//! The modules:
//!
//! * [`scenario`]: parses a small text file into steps and runs it. [`subject`]: the homes in which scenarios run;
//!   [`conformance`]: all scenarios in all of them. [`differential`]: random commands, compared between homes.
//! * [`sim_disk`], [`valve`], [`manual_clock`]: the engine's disk and clock, with crashes, faults and blocked calls on
//!   demand.
//! * [`local_server`]: a server in this process. [`process`], [`server_process`]: the real binary. [`loop_image`],
//!   [`btrfs`], [`slow_disk`]: real file systems for power cuts, full and slow disks. [`shifted_clock`]: manual
//!   clocks for a process.
//! * [`redis_server`], [`redis_cluster`], [`redis_sentinels`]: a real Redis or Valkey, or several; [`redis_module`]:
//!   with the module loaded.
//! * [`client`]: clients for both dialects. [`load`]: many of them at once, whose replies [`history`] checks.
//!   [`home_load`]: the same through the library, for homes with injected faults; [`proxy`]: faults of a connection.
//! * [`patience`]: waiting for conditions without a signal; [`machine_watch`]: time limits that hold on a busy machine.

#[cfg(feature = "homes")]
pub use sureq_history as history;

#[cfg(feature = "homes")]
pub mod btrfs;
#[cfg(feature = "homes")]
pub mod client;
#[cfg(feature = "homes")]
pub mod conformance;
#[cfg(feature = "homes")]
pub mod differential;
#[cfg(feature = "homes")]
pub mod home_load;
#[cfg(feature = "homes")]
pub mod load;
#[cfg(feature = "homes")]
pub mod local_server;
#[cfg(feature = "homes")]
pub mod loop_image;
#[cfg(feature = "homes")]
pub mod machine_watch;
pub mod manual_clock;
#[cfg(feature = "homes")]
pub mod patience;
#[cfg(feature = "homes")]
pub mod process;
#[cfg(feature = "homes")]
pub mod proxy;
#[cfg(feature = "homes")]
pub mod redis_cluster;
#[cfg(feature = "homes")]
pub mod redis_module;
#[cfg(feature = "homes")]
pub mod redis_sentinels;
#[cfg(feature = "homes")]
pub mod redis_server;
#[cfg(feature = "homes")]
pub mod scenario;
#[cfg(feature = "homes")]
pub mod server_process;
#[cfg(feature = "homes")]
pub mod shifted_clock;
pub mod sim_disk;
#[cfg(feature = "homes")]
pub mod slow_disk;
#[cfg(feature = "homes")]
pub mod subject;
#[cfg(feature = "homes")]
pub mod valve;

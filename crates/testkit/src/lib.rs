//! What the tests of all crates share: scenarios, doubles for disk and clock, clients and processes.
//!
//! The map:
//!
//! * [`scenario`]: a small text file becomes steps, and is played. [`subject`]: what it is played against; [`conformance`]:
//!   all of them, against all.
//! * [`sim_disk`], [`valve`], [`manual_clock`]: the doors of the engine, with a disk that fails or stands still on demand and a
//!   clock moved by hand.
//! * [`local_server`]: a server in this process. [`process`], [`server_process`], [`loop_image`], [`btrfs`], [`slow_disk`],
//!   [`shifted_clock`]: the real binary, real disks to cut the power of, to fill or to slow down, and clocks of a process that are
//!   moved by hand.
//! * [`redis_server`], [`redis_cluster`], [`redis_sentinels`]: a real Redis or Valkey, or several of them; [`redis_module`]: with the
//!   module loaded.
//! * [`client`]: clients of our own for both dialects. [`load`]: many of them at once; [`history`] checks what they were
//!   told. [`home_load`]: the same through the library, for homes that are harmed meanwhile; [`proxy`] harms a connection.
//! * [`patience`]: how long tests wait for what gives no signal; [`machine_watch`]: bounds on time that hold on a busy machine.

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

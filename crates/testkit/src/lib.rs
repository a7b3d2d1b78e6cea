//! Placeholder.

pub mod sim_disk;
pub mod conformance;
pub mod manual_clock;
pub mod scenario;
pub mod subject;
pub mod client;
pub mod ledger;
pub mod load;
pub mod loop_image;
pub mod process;
pub mod server_process;

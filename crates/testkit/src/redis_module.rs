//! The module as a file, and servers with the module loaded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::process::Process;
use crate::redis_server::{RedisServer, valkey};

/// A server that loads modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The `redis-server` of this machine.
    Redis,
    /// The Valkey that came with the foreign clients.
    Valkey,
}

impl Host {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// The path of its program.
    pub fn program(self) -> PathBuf {
        match self {
            Self::Redis => PathBuf::from("redis-server"),
            Self::Valkey => valkey(),
        }
    }

    /// Starts it with the module.
    pub fn start(self, options: &[&str], environment: &[(&str, PathBuf)]) -> RedisServer {
        let library = library();
        let library = library.to_str().expect("a path of this build");
        let own = ["--loadmodule", library, "--enable-debug-command", "yes", "--hz", "500"];
        RedisServer::start_in(&self.program(), &[&own, options].concat(), environment)
    }
}

/// The path of the module, built with the profile of the tests. Cargo does not build it for them, since nothing links
/// it.
///
/// # Panics
///
/// If it cannot be built.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> PathBuf {
    let tests = std::env::current_exe().expect("this runs");
    let profile = tests.ancestors().nth(2).expect("tests are built below the directory of their profile");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace).args(["build", "--quiet", "-p", "sureq-module"]);
    cargo.args(profile.ends_with("release").then_some("--release"));
    cargo.arg("--target-dir").arg(profile.parent().expect("a profile is within the target directory"));
    let mut cargo = Process::start(&mut cargo);
    assert!(cargo.wait(BUILD_PATIENCE).success(), "the module cannot be built:\n{cargo}");
    profile.join("libsureq_module.so")
}

/// The time limit for a build.
const BUILD_PATIENCE: std::time::Duration = std::time::Duration::from_secs(600);

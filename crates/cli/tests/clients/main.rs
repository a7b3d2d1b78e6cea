//! Real, unmodified clients against the real binary, each with a server of its own.
//!
//! `./test` installs their dependencies: redis-cli, redis-server and netcat by apt, redis-py and redis-queue by pip,
//! ioredis by npm.

mod autoscale;
mod dq_image;
mod examples;
mod netcat;
mod readme;
mod redis_cli;
mod redis_queue_py;
mod redis_rs;
mod redis_server;
mod scripts;
mod users;
mod workers;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sureq_testkit::server_process::{Launch, Server};
use tempfile::TempDir;

/// The binary under test.
const SUREQ: &str = env!("CARGO_BIN_EXE_sureq");

/// A server with an empty store, which is removed with it.
struct Fixture {
    server: Server,
    _dir: TempDir,
}

impl Fixture {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let server = Launch::serve(SUREQ, &dir.path().join("data")).start();
        Self { server, _dir: dir }
    }

    fn host(&self) -> String {
        self.server.resp.ip().to_string()
    }

    fn resp_port(&self) -> String {
        self.server.resp.port().to_string()
    }

    fn text_port(&self) -> String {
        self.server.text.port().to_string()
    }
}

/// The repository.
fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("the crate is two directories below the repository")
}

/// Runs a command with an input; it must succeed.
fn run(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let Output { status, stdout, stderr } = run_to_end(command, input);
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    stdout
}

fn run_to_end(command: &mut Command, input: &[u8]) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| {
        panic!("cannot run {command:?}: {error}; ./test installs what the tests need");
    });
    // The input is small enough for the pipe, or the command reads it before it answers.
    child.stdin.take().expect("it is piped").write_all(input).expect("the command reads its input");
    child.wait_with_output().expect("the command ends")
}

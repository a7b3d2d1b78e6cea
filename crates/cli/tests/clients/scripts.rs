//! Clients in other languages; their scripts are in `clients/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Fixture, root, run};

/// The directory where `./test` installs the clients: beside the build, never in the source.
pub(crate) fn installed() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("clients")
}

pub(crate) fn python(script: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(installed().join("venv/bin/python"));
    run_script(command.arg(root().join("clients").join(script)).args(arguments))
}

fn node(script: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("node");
    run_script(command.arg(root().join("clients").join(script)).arg(installed()).args(arguments))
}

fn run_script(command: &mut Command) -> String {
    String::from_utf8(run(command, b"")).expect("the script prints text")
}

#[test]
fn redis_py_speaks_resp3() {
    let it = Fixture::start();
    let output = python("redis_py.py", &[&it.host(), &it.resp_port(), "3"]);
    assert_eq!(output.lines().count(), 12, "{output}");
}

#[test]
fn redis_py_speaks_resp2() {
    let it = Fixture::start();
    let output = python("redis_py.py", &[&it.host(), &it.resp_port(), "2"]);
    assert_eq!(output.lines().count(), 12, "{output}");
}

#[test]
fn ioredis_works() {
    let it = Fixture::start();
    let output = node("ioredis.mjs", &[&it.host(), &it.resp_port()]);
    assert_eq!(output.lines().count(), 10, "{output}");
}

#[test]
fn netcat_and_redis_py_share_a_queue() {
    let it = Fixture::start();
    let added = crate::netcat::talk(&it, "ADD 0 from-netcat\n");
    assert!(added.starts_with("TASK "), "{added}");
    python("redis_py_shared.py", &[&it.host(), &it.resp_port(), "from-netcat", "from-redis-py"]);
    let reserved = crate::netcat::talk(&it, "RESERVE\n");
    let id = reserved.strip_prefix("TASK ").and_then(|rest| rest.strip_suffix(" BODY from-redis-py\n"));
    let id = id.unwrap_or_else(|| panic!("RESERVE was answered {reserved:?}"));
    let rest = crate::netcat::talk(&it, &format!("DELETE {id}\nDELETE {id}\nRESERVE\n"));
    assert_eq!(rest, "ok\nunknown TASK_ID\nnil\n");
}

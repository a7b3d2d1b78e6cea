//! The examples of README.md in Python and Node, run as a reader would copy them.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::scripts::installed;
use crate::{Fixture, root, run};

/// The only block in this language, with the port of the test in it.
fn example(language: &str, it: &Fixture) -> String {
    let readme = fs::read_to_string(root().join("README.md")).expect("there is a README");
    let (_, block) = readme.split_once(&format!("```{language}\n")).expect("the README has an example");
    let (block, _) = block.split_once("```").expect("the block ends");
    assert!(block.contains("7379"), "the example names the port");
    block.replace("7379", &it.resp_port())
}

#[test]
fn the_example_in_python_runs() {
    let it = Fixture::start();
    let mut python = Command::new(installed().join("venv/bin/python"));
    let output = run(python.arg("-c").arg(example("python", &it)), b"");
    assert_eq!(String::from_utf8_lossy(&output), "sending to: ann\n");
}

#[test]
fn the_example_in_node_runs() {
    let it = Fixture::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    symlink(installed().join("node_modules"), dir.path().join("node_modules")).expect("a link to ioredis");
    let program = dir.path().join("example.mjs");
    fs::write(&program, example("js", &it)).expect("the program can be written");
    let output = run(Command::new("node").arg(&program), b"");
    assert_eq!(String::from_utf8_lossy(&output), "sending to: ann\n");
}

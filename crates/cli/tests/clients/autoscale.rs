//! The program of docs/use/clients/autoscaling.md, with a kubectl that records its calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use sureq_testkit::process::Process;
use tempfile::TempDir;

use crate::{Fixture, root, scripts};

/// Reports two replicas, regardless of earlier requests.
const KUBECTL: &str =
    "#!/bin/sh\ncase $1 in get) echo 2 ;; *) echo \"$@\" >> \"$(dirname \"$0\")/asked\" ;; esac\n";

fn scaler(it: &Fixture, settings: &[(&str, &str)]) -> (Process, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubectl = dir.path().join("kubectl");
    fs::write(&kubectl, KUBECTL).expect("the script can be written");
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let mut command = Command::new(scripts::installed().join("venv/bin/python"));
    command.arg(root().join("docs/use/clients/autoscale.py")).env("PATH", path).env("EVERY_S", "0.01");
    command.env("SUREQ_URL", format!("redis://{}", it.server.resp)).envs(settings.iter().copied());
    (Process::start(&mut command), dir)
}

fn asked(dir: &TempDir) -> String {
    fs::read_to_string(dir.path().join(Path::new("asked"))).unwrap_or_default()
}

/// Waits for this many looks at the queue, and returns the output of the last one.
fn looks(scaler: &Process, count: usize) -> String {
    let seen = std::cell::Cell::new(0);
    scaler.find_in_stdout(|line| {
        seen.set(seen.get() + 1);
        (seen.get() == count).then(|| line.rsplit(": ").next().unwrap_or_default().trim().to_owned())
    })
}

fn push_many(it: &Fixture) {
    let payloads = vec!["x"; 3_000];
    it.server.client().command(&[&["RQ.PUSH", "emails"], payloads.as_slice()].concat());
}

#[test]
fn a_backlog_at_most_doubles_the_workers() {
    let it = Fixture::start();
    push_many(&it);
    let (scaler, dir) = scaler(&it, &[]);
    assert_eq!(looks(&scaler, 1), "2 -> 4");
    assert!(asked(&dir).starts_with("scale deployment/worker --replicas=4\n"), "{:?}", asked(&dir));
}

#[test]
fn an_empty_queue_keeps_its_workers_for_a_while() {
    let it = Fixture::start();
    let (patient, dir) = scaler(&it, &[]);
    assert_eq!(looks(&patient, 5), "2 -> 2");
    assert_eq!(asked(&dir), "");
    let (hasty, dir) = scaler(&it, &[("CALM_S", "0")]);
    assert_eq!(looks(&hasty, 5), "2 -> 1");
    assert!(asked(&dir).contains("scale deployment/worker --replicas=1\n"), "{:?}", asked(&dir));
}

#[test]
fn no_more_workers_are_started_than_max_leased() {
    let it = Fixture::start();
    push_many(&it);
    it.server.client().say("RQ.CONFIG emails MAX-LEASED 3");
    let (bounded, _dir) = scaler(&it, &[("CALM_S", "0")]);
    assert_eq!(looks(&bounded, 5), "2 -> 3");
    it.server.client().say("RQ.PAUSE emails");
    let (paused, _dir) = scaler(&it, &[("CALM_S", "0")]);
    assert_eq!(looks(&paused, 5), "2 -> 1");
}

//! `sureq prove`: a few seconds of crashes lose nothing, and a broken guarantee is found.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process_group};
use sureq_testkit::patience::until;
use sureq_testkit::process::{PATIENCE, Process, await_end};
use sureq_testkit::redis_server::RedisServer;

use crate::{SUREQ, scratch};

fn prove(dir: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(SUREQ).arg("prove").args(arguments).current_dir(dir).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The number of entries in a directory.
fn left_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).expect("it exists").count()
}

#[test]
fn a_few_seconds_of_crashes_lose_nothing() {
    let dir = scratch();
    let (output, text) = prove(dir.path(), &["--seconds", "4", "--seed", "7"]);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.ends_with(" redelivered · 0 lost · 0 finished twice\n"), "{text}");
    let words: Vec<&str> = text.trim_end().split(" · ").collect();
    let count = |words: &str| words.split(' ').next().and_then(|n| n.replace(',', "").parse::<u64>().ok());
    assert!(words[0].ends_with(" confirmed") && count(words[0]) > Some(100), "{text}");
    assert!(words[1].ends_with(" crashes") && count(words[1]) >= Some(2), "{text}");
    assert!(words[2].ends_with(" held at crashes") && count(words[2]) > Some(0), "{text}");
    assert!(words[3].ends_with(" redelivered") && count(words[3]) > Some(0), "{text}");
    assert_eq!(left_in(dir.path()), 0, "the directory of a proof that went well is removed");
}

#[test]
fn a_task_that_vanishes_is_lost_and_the_store_is_kept_as_evidence() {
    let dir = scratch();
    let (output, text) = prove(dir.path(), &["--seconds", "1", "--json", "--sabotage", "lose"]);
    let verdict = json_of(&text);
    assert_eq!(
        (output.status.code(), &verdict["lost"], &verdict["kept"]),
        (Some(3), &1.into(), &false.into())
    );
    assert_eq!(verdict["finished_twice"], 0);
    assert_eq!(left_in(dir.path()), 1);
}

#[test]
fn a_task_that_is_finished_twice_is_noticed() {
    let dir = scratch();
    let (output, text) = prove(dir.path(), &["--seconds", "1", "--json", "--sabotage", "repeat"]);
    let verdict = json_of(&text);
    assert_eq!((output.status.code(), &verdict["finished_twice"]), (Some(3), &1.into()));
    assert_eq!(verdict["lost"], 0);
}

/// Starts a proof and waits until it has killed one of its processes; returns it and the ids of its current
/// processes.
fn under_way(dir: &Path) -> (Process, Vec<u32>) {
    let words = ["prove", "--seconds", "1000", "--seed", "7", "--json"];
    let process = Process::start(Command::new(SUREQ).args(words).current_dir(dir));
    let list = format!("/proc/{0}/task/{0}/children", process.id());
    let (mut first, mut children) = (None, Vec::<u32>::new());
    // A server and three workers. Only the list of processes shows that one of them was replaced.
    until("one of four was killed", || {
        let text = std::fs::read_to_string(&list).expect("it runs");
        children = text.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        children.len() == 4 && *first.get_or_insert_with(|| children.clone()) != children
    });
    (process, children)
}

#[test]
fn ctrl_c_ends_a_proof_orderly_and_loses_nothing() {
    let dir = scratch();
    let (mut process, children) = under_way(dir.path());
    // Like a terminal: the whole process group gets the signal.
    let group = Pid::from_raw(process.id().cast_signed()).expect("it has a number");
    kill_process_group(group, Signal::INT).expect("it exists");
    let code = process.exit_code(PATIENCE);
    let verdict = json_of(&process.stdout());
    assert_eq!((code, &verdict["kept"]), (0, &true.into()), "{process}");
    assert_eq!((&verdict["lost"], &verdict["left"]), (&0.into(), &0.into()), "{process}");
    assert_eq!(left_in(dir.path()), 0);
    children.into_iter().for_each(await_end);
}

#[test]
fn processes_of_a_proof_end_with_it() {
    let dir = scratch();
    let (mut process, children) = under_way(dir.path());
    process.signal(Signal::KILL);
    process.wait(PATIENCE);
    children.into_iter().for_each(await_end);
}

#[test]
fn another_home_is_proven_by_killing_only_workers() {
    let (dir, redis) = (scratch(), RedisServer::start());
    let (output, text) =
        prove(dir.path(), &["--seconds", "3", "--seed", "3", "--home", &redis.url(), "--json"]);
    let verdict = json_of(&text);
    assert!(output.status.success(), "{text}");
    assert_eq!((&verdict["server_crashes"], &verdict["kept"]), (&0.into(), &true.into()));
    assert!(verdict["worker_crashes"].as_u64() >= Some(1), "{text}");
    // Tasks held by killed workers were redelivered.
    assert!(verdict["held"].as_u64() > Some(0) && verdict["redelivered"].as_u64() > Some(0), "{text}");
    redis.check("sureq:");
    assert_eq!(left_in(dir.path()), 0);
}

#[test]
fn a_home_without_leases_cannot_be_proven() {
    let (dir, redis) = (scratch(), RedisServer::start());
    for layout in ["worqr", "redis-queue"] {
        let home = format!("{}?layout={layout}", redis.url());
        let (output, text) = prove(dir.path(), &["--seconds", "1", "--home", &home]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.as_str()), (Some(1), ""), "{said}");
        assert!(said.contains("cannot prove this home: ") && said.contains("POP LEASE"), "{said}");
    }
    let (output, _) = prove(dir.path(), &["--seconds", "1", "--durability", "odd"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_proof_without_crashes_proves_nothing() {
    let dir = scratch();
    let (output, text) = prove(dir.path(), &["--seconds", "0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}{said}");
    assert!(said.contains("inconclusive"), "{said}");
    assert_eq!(left_in(dir.path()), 0, "there is no evidence to keep");
}

#[test]
fn losses_at_durability_none_are_explained() {
    let dir = scratch();
    let words = ["--seconds", "1", "--durability", "none", "--sabotage", "lose"];
    let (output, _) = prove(dir.path(), &words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3));
    assert!(said.contains("with --durability none a kill loses the last confirmations"), "{said}");
}

#[test]
fn a_directory_as_home_of_a_proof_is_refused() {
    let dir = scratch();
    let (output, _) = prove(dir.path(), &["--home", "file:x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("leave out --home"));
}

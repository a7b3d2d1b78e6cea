//! `sureq work`: a program for each task, and all its outcomes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sureq_testkit::process::{PATIENCE, Process, await_end};

use crate::commands::{check_refused, command, in_dir, lines, on_server, sureq};
use crate::users::TestUsers;
use crate::{scratch, serve};

fn await_word(process: &Process, word: &str) {
    process.find_in_stdout(|text| text.contains(word).then_some(()));
}

#[test]
fn the_exit_code_of_a_program_decides_its_task() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    lines(home, &["push", "q", "0", "75", "--tries", "2"]);
    lines(home, &["push", "q", "3", "--tries", "1"]);
    // A returned task is delivered again and is done then: it costs no try.
    let script = r#"n=$(cat); test "$n" = 75 && test "$SUREQ_DELIVERY" -gt 1 && n=0; echo "$SUREQ_QUEUE $SUREQ_ID $n"; exit $n"#;
    let worked = sureq(home, &["work", "q", "--jobs", "2", "--until-empty", "--", "sh", "-c", script]);
    assert_eq!(worked.code, 0, "{}", worked.err);
    assert!(worked.err.contains("2 tasks done, 1 failed, 1 returned"), "{}", worked.err);
    assert_eq!(worked.out.lines().count(), 4, "{}", worked.out);
    let dead = lines(home, &["inspect", "q", "--state", "dead", "--json"]).concat();
    assert!(dead.contains(r#""reason":"exit status: 3","failed":1"#), "{dead}");
    check_refused(home, &["workers", "--fail", "nobody", "--yes"], 4, "no worker nobody");
    assert_eq!(lines(home, &["workers"]), ["no live workers"]);
}

#[test]
fn a_stopped_worker_returns_its_unfinished_tasks() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    lines(home, &["push", "q", "a", "--tries", "1"]);
    let words = ["work", "q", "--grace", "100ms", "--", "sh", "-c", "echo begun; exec sleep 1000"];
    let worker = Process::start(&mut command(home, &words));
    await_word(&worker, "begun");
    worker.signal(Signal::TERM);
    assert!(worker.ends_within(PATIENCE), "the worker ends without its program");
    let inspected = lines(home, &["inspect", "q"]).concat();
    assert!(inspected.ends_with('a'), "the task is requeued at no cost: {inspected}");
}

#[test]
fn the_program_of_a_cancelled_task_is_stopped() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    let id = lines(home, &["push", "q", "a"]).concat();
    let script = "trap 'echo stopped; exit 1' TERM; echo begun; sleep 1000 & wait";
    let words = ["work", "q", "--lease", "600ms", "--until-empty", "--", "sh", "-c", script];
    let worker = Process::start(&mut command(home, &words));
    await_word(&worker, "begun");
    assert_eq!(lines(home, &["cancel", "q", &id]), ["1 task cancelled"]);
    await_word(&worker, "stopped");
    assert!(worker.ends_within(PATIENCE), "nothing is left to do");
    assert_eq!(lines(home, &["queues"]), ["no queue has tasks"]);
}

/// A program that ends on SIGTERM, and a child of it that ignores it. The child writes its process id to the file.
const STUBBORN: &str = r#"sh -c 'trap "" TERM; echo $$ > "$0"; echo begun; while :; do sleep 1; done' "$0" & trap 'exit 1' TERM; wait"#;

/// Fails unless the process whose id is in the file ends.
fn check_ends(file: &Path) {
    let id = std::fs::read_to_string(file).expect("it is written");
    await_end(id.trim().parse().expect("a number"));
}

/// Starts a worker with a stubborn program; returns it and the file with the id of the program's child.
fn stubborn(home: &str, dir: &Path, grace: &str) -> (Process, PathBuf) {
    let file = dir.join("child");
    lines(home, &["push", "q", "a"]);
    let words = ["work", "q", "--grace", grace, "--", "sh", "-c", STUBBORN, file.to_str().expect("a path")];
    let worker = Process::start(&mut command(home, &words));
    await_word(&worker, "begun");
    (worker, file)
}

#[test]
fn children_of_a_stopped_program_end_before_its_task_is_returned() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    let (worker, file) = stubborn(home, dir.path(), "1ms");
    worker.signal(Signal::TERM);
    assert!(worker.ends_within(PATIENCE), "the worker ends without its program");
    check_ends(&file);
    assert_eq!(lines(home, &["inspect", "q"]).len(), 2, "a head and the task");
}

#[test]
fn a_second_signal_ends_the_programs_too() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let (mut worker, file) = stubborn(&on_server(server.resp), dir.path(), "1h");
    // Two signals at the same time count as one, so they are sent until two have been received.
    while !worker.ends_within(Duration::from_millis(100)) {
        worker.signal(Signal::TERM);
    }
    assert_eq!(worker.exit_code(PATIENCE), 130);
    check_ends(&file);
}

#[test]
fn a_program_ends_when_it_exits_even_if_a_child_holds_its_input() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    let file = dir.path().join("large");
    // More than a pipe buffers.
    std::fs::write(&file, vec![b'x'; 1 << 20]).expect("the file can be written");
    lines(home, &["push", "q", "--file", file.to_str().expect("a path")]);
    let holder = dir.path().join("holder");
    let script = r#"exec 3<&0; sleep 1000 <&3 >/dev/null 2>&1 & echo $! > "$0"; exit 0"#;
    let words = ["work", "q", "--until-empty", "--", "sh", "-c", script, holder.to_str().expect("a path")];
    let mut worker = Process::start(&mut command(home, &words));
    assert_eq!(worker.exit_code(PATIENCE), 0);
    assert!(worker.stderr().contains("1 task done"), "{worker}");
    let id = std::fs::read_to_string(&holder).expect("it is written");
    let id = id.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
    kill_process(id, Signal::KILL).expect("it exists");
}

#[test]
fn a_worker_that_was_declared_lost_counts_its_lost_tasks() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    lines(home, &["push", "q", "a"]);
    let script = "test $SUREQ_DELIVERY -gt 1 && exit 0; echo begun; exec sleep 1000";
    let words = ["work", "q", "--name", "w", "--lease", "600ms", "--until-empty", "--", "sh", "-c", script];
    let mut worker = Process::start(&mut command(home, &words));
    await_word(&worker, "begun");
    assert_eq!(lines(home, &["workers", "--fail", "w", "--yes"]), ["1 task requeued"]);
    assert_eq!(worker.exit_code(PATIENCE), 0, "{worker}");
    let said = worker.stderr();
    assert!(said.contains("1 task done, 0 failed, 0 returned, 1 lost to another worker"), "{said}");
    assert!(
        said.contains("sureq: the worker was declared lost; its tasks were requeued (worker w,"),
        "{said}"
    );
}

#[test]
fn a_worker_logs_failed_tries_and_the_loss_of_its_home() {
    let dir = scratch();
    let mut server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    lines(home, &["push", "q", "a", "--tries", "2"]);
    let worker = Process::start(&mut command(home, &["work", "q", "--", "sh", "-c", "exit 3"]));
    let logged =
        |words: &'static str| worker.find_in_stderr(|line| line.contains(words).then(|| line.to_owned()));
    for failed in [logged("a try failed"), logged("a task is dead")] {
        assert!(failed.contains("(queue q, id ") && failed.contains("reason exit status: 3)"), "{failed}");
    }
    server.kill9();
    logged("cannot reach the home; trying again");
}

#[test]
fn dead_tasks_are_counted() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    lines(home, &["push", "q", "a", "--tries", "1"]);
    let words = ["work", "q", "--until-empty", "--json", "--", "sh", "-c", "exit 3"];
    let mut worker = Process::start(&mut command(home, &words));
    worker.wait(PATIENCE);
    assert!(worker.stdout().contains("\"dead\":1"), "{worker}");
}

#[test]
fn a_worker_without_the_role_read_reports_that_dead_tasks_count_as_failed() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "root").start();
    let mut root = users.root(&server);
    let mut add =
        |payload| root.command(&["RQ.ADD", "emails", payload, "TRIES", "1"]).list()[0].clone().text();
    let ids = [add("a"), add("b")];
    let home = format!("sureq://worker:{}@{}", users.worker_token, server.resp);
    let mut worker = Process::start(&mut command(&home, &["work", "emails", "--json", "--", "false"]));
    let warning = "the worker's user may not explain tasks; give it the role `read`";
    worker.find_in_stderr(|text| text.contains(warning).then_some(()));
    for id in ids {
        let failed = format!("a try failed (queue emails, id {id}");
        worker.find_in_stderr(|text| text.contains(&failed).then_some(()));
    }
    worker.signal(Signal::TERM);
    worker.wait(PATIENCE);
    assert_eq!(worker.stderr().matches(warning).count(), 1, "{worker}");
    assert!(worker.stdout().contains("\"failed\":2"), "{worker}");
}

#[test]
fn no_task_is_popped_for_a_missing_program() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    check_refused(home, &["work", "q", "--", "/nonexistent"], 1, "cannot run /nonexistent: no such program");
    check_refused(home, &["queues"], 1, "there is no store in");
}

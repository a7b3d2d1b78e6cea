//! Crashes at every step of rolling, recycling, compaction, checkpoints, retiring segments and starting, three times
//! in a row each: no confirmed task is lost, and no finished task is redelivered.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::history::{Findings, Outcome, SharedHistory, Time, payload};
use sureq_testkit::load::{Load, complete_finish, confirm, deliver, invoke_finish, scale, seeded};
use sureq_testkit::loop_image::Tmpfs;
use sureq_testkit::process::Process;
use sureq_testkit::server_process::{Launch, Server};

use crate::serve;

/// The failpoints, each with the number of times that it is passed before the crash. Steps that a start also reaches
/// crash the first time, and again later under load. Steps that are only reached after a crash at another one
/// alternate with it.
const STEPS: [&[&str]; 30] = [
    &["segment.before-sync:1"],
    &["segment.before-sync:3"],
    &["segment.before-rename:1"],
    &["segment.before-rename:3"],
    &["segment.after-rename:1"],
    &["segment.after-rename:3"],
    &["roll.before-seal:2"],
    &["roll.after-seal:2"],
    &["recover.after-rewrite:1"],
    &["recover.after-retire:1"],
    &["roll.before-seal:1", "recover.before-seal:1", "recover.before-seal:1"],
    &["roll.before-seal:1", "recover.after-seal:1"],
    &["open.after-recovery:1"],
    &["open.after-leftovers:1"],
    &["open.after-incarnation:1"],
    &["store.one-written:1"],
    &["store.one-written:3"],
    &["spare.created:3"],
    &["spare.filled:3"],
    &["checkpoint.half:2", "checkpoint.draft-removed:1"],
    &["checkpoint.before-rename:2"],
    &["checkpoint.after-rename:2"],
    &["checkpoint.one-dropped:2"],
    &["checkpoint.before-the-last-sync:3"],
    &["retire.after-sync:2"],
    &["retire.before-rename:1"],
    &["retire.after-rename:1"],
    &["retire.before-unlink:1", "retire.after-unlink:1"],
    &["forward.before:1"],
    &["forward.half:1"],
];

/// Steps that only a full disk leads to, and the step that turns a dead segment into a spare, which other tests reach
/// only by chance after the start.
const STEPS_WHEN_FULL: [&str; 4] =
    ["spare.given-up:1", "checkpoint.older-dropped:1", "retire.before-rename:3", "retire.after-rename:3"];

/// Steps of a backup or a repair, at which the tests of `store_files` crash.
pub(crate) const STEPS_OF_COPIES: [&str; 2] = ["copy.segment-written:3", "copy.before-unmark:1"];

/// The step of a start that finds a tail larger than a segment.
const STEP_OF_A_GIANT: &str = "recover.after-confirm:1";

/// The time limit for reaching a step.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a server until it crashes at its step.
fn live(launch: &Launch, act: impl FnOnce(&Server)) -> Process {
    match launch.try_start() {
        Err(process) => process,
        Ok(server) => {
            thread::scope(|scope| {
                scope.spawn(|| {
                    if !server.ends_within(PATIENCE) {
                        server.signal(Signal::KILL);
                    }
                });
                act(&server);
            });
            server.into_process()
        }
    }
}

fn expect_crash(step: &str, mut process: Process) {
    let signal = process.wait(PATIENCE).signal();
    assert_eq!(signal, Some(Signal::ABORT.as_raw()), "{step} was not reached:\n{process}");
}

fn crash_at(steps: &[&[&str]]) {
    let mut rng = seeded();
    for turns in steps {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        let launch = serve(&dir.path().join("data")).args(["--segment-bytes", "64KB"]);
        let history = SharedHistory::default();
        let load = Load { producers: 3, consumers: 3, pipeline: 8, ..Load::default() };
        for _ in 0..scale() {
            let mut first = launch.start();
            let load_first = Load { pushes: 1_000, ..load.clone() };
            load_first.run(first.resp, &mut rng, &history, || {
                first.kill9();
            });
            for step in turns.repeat(3) {
                let armed = launch.clone().env("SUREQ_FAILPOINT", step);
                let process = live(&armed, |server| load.run_until_gone(server.resp, &mut rng, &history));
                expect_crash(step, process);
            }
        }
        let mut server = launch.start();
        load.drain(server.resp, &history);
        server.kill9();
        let history = history.into_inner();
        println!("{turns:?}: {history}");
        assert_eq!(history.findings(0), Findings::default(), "{turns:?}: {history}");
    }
}

#[test]
fn a_crash_at_every_step_three_times_in_a_row_loses_nothing() {
    crash_at(&STEPS[..STEPS.len() / 2]);
}

#[test]
fn a_crash_at_every_further_step_three_times_in_a_row_loses_nothing() {
    crash_at(&STEPS[STEPS.len() / 2..]);
}

const QUEUE: &str = "q";

/// Pushes until a push is refused. Only a lost connection is an error.
fn push_until_refused(client: &mut RespClient, history: &SharedHistory) -> io::Result<()> {
    loop {
        let mut commands = Vec::new();
        let pushes: Vec<_> = (0..50).map(|_| history.lock().invoke_push(1)).collect();
        for push in &pushes {
            commands.extend(encode(&[b"RQ.PUSH", QUEUE.as_bytes(), &payload::encode(push.first)]));
        }
        client.send_raw(&commands)?;
        let mut is_refused = false;
        for push in pushes {
            match client.read()? {
                Value::Error(error) => {
                    assert!(error.starts_with("NOSPACE"), "{error}");
                    history.lock().complete_push(push, Outcome::Failed);
                    is_refused = true;
                }
                reply => confirm(history, push, &reply.ids()),
            }
        }
        if is_refused {
            return Ok(());
        }
    }
}

/// Takes and finishes tasks until there are none.
fn finish(client: &mut RespClient, history: &SharedHistory) -> io::Result<()> {
    loop {
        let sent = Time::now();
        client.send_raw(&encode(&["RQ.POP", "COUNT", "5", QUEUE]))?;
        let tasks = client.read()?.tasks();
        if tasks.is_empty() {
            return Ok(());
        }
        deliver(history, &tasks, sent);
        client.send_raw(&invoke_finish(history, QUEUE, &tasks))?;
        complete_finish(history, &tasks, &client.read()?.ids());
    }
}

/// Takes all free space, including space that becomes free, until `is_over`.
fn take_all_room(path: &Path, is_over: &AtomicBool) {
    let mut file = File::create(path).expect("there are files enough");
    while !is_over.load(Ordering::Relaxed) {
        if file.write_all(&[b'x'; 4096]).is_err() {
            thread::yield_now();
        }
    }
    std::fs::remove_file(path).expect("it exists");
}

/// Repeatedly fills the disk, and then empties the queue while another file takes all space that becomes free.
fn fill_and_finish(server: &Server, mount: &Path, history: &SharedHistory) {
    let turn = || -> io::Result<()> {
        let mut client = RespClient::try_connect(server.resp)?;
        push_until_refused(&mut client, history)?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| take_all_room(&mount.join("filler"), &is_over));
            let finished = finish(&mut client, history);
            is_over.store(true, Ordering::Relaxed);
            finished
        })
    };
    while turn().is_ok() {}
}

#[test]
fn a_crash_at_every_step_of_making_room_three_times_in_a_row_loses_nothing() {
    for step in STEPS_WHEN_FULL {
        let disk = Tmpfs::new("size=3m");
        let launch = serve(&disk.path().join("data")).args(["--segment-bytes", "64KB"]);
        let armed = launch.clone().env("SUREQ_FAILPOINT", step);
        let history = SharedHistory::default();
        for _ in 0..3 * scale() {
            let process = live(&armed, |server| fill_and_finish(server, disk.path(), &history));
            expect_crash(step, process);
        }
        let mut server = launch.start();
        Load { queues: &[QUEUE], ..Load::default() }.drain(server.resp, &history);
        server.kill9();
        let history = history.into_inner();
        println!("{step}: {history}");
        assert_eq!(history.findings(0), Findings::default(), "{step}: {history}");
    }
}

#[test]
fn a_crash_while_a_tail_larger_than_a_segment_is_confirmed_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let launch = serve(&dir.path().join("data")).args(["--segment-bytes", "64KB"]);
    let (mut server, payload) = (launch.start(), vec![b'x'; 1 << 20]);
    let id = server.client().push("q", &payload);
    server.kill9();
    let armed = launch.clone().env("SUREQ_FAILPOINT", STEP_OF_A_GIANT);
    for _ in 0..3 {
        expect_crash(STEP_OF_A_GIANT, armed.spawn());
    }
    let task = launch.start().client().pop("q", 1).remove(0);
    assert!(task.id == id && task.payload == payload, "the task is unchanged");
}

/// The names of all failpoints in the source of the engine.
fn names_in(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("it exists") {
        let path = entry.expect("it exists").path();
        if path.is_dir() {
            names_in(&path, names);
        } else {
            let text = std::fs::read_to_string(&path).expect("it is text");
            let calls = text.split("failpoint(\"").skip(1).filter_map(|rest| rest.split('"').next());
            names.extend(calls.map(str::to_owned));
        }
    }
}

#[test]
fn every_step_is_tested() {
    let mut names = BTreeSet::new();
    names_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src"), &mut names);
    let steps = STEPS
        .iter()
        .copied()
        .flatten()
        .chain(&STEPS_WHEN_FULL)
        .chain(&STEPS_OF_COPIES)
        .chain([&STEP_OF_A_GIANT]);
    let tried: BTreeSet<String> = steps.filter_map(|step| Some(step.split_once(':')?.0.to_owned())).collect();
    assert_eq!(names, tried, "the failpoints in the source and those in this test");
}

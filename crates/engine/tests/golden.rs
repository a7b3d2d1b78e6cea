//! A store that an earlier release wrote opens in this one, with all its tasks.
//!
//! `tests/golden/v1` was written by the release that introduced format 1 and is never changed; `v2`, of which old
//! segments were removed, by the release that introduced checkpoints; `v3` by the one whose checkpoints have longer
//! runs, and encode tasks once that differ from their neighbours in the same way. A new format gets a new directory:
//! raise `VERSION`, run this test once with `SUREQ_BLESS=1`, and commit the new directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq_core::command::{
    AckScope, Add, Command, IdForm, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs, View, When, Worker,
};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Replies, Reply};
use sureq_engine::backup::Verify;
use sureq_engine::clock::SystemClock;
use sureq_engine::disk::{DirDisk, Disk, ReadDisk};
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};

const VERSION: u32 = 3;

/// The number of tasks that differ from their neighbours in the same way. One more among them was deleted, and
/// another one follows that differs otherwise.
const ALIKE: usize = 600;

/// The number of tasks that stay, each in a segment without other live tasks.
const KEPT: usize = 8;

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

fn open(dir: &Path) -> Engine {
    let options = Options { segment_bytes: Some(16 << 10), ..Options::default() };
    Engine::open(dir, &options).expect("a store of every format opens")
}

fn execute(engine: &Engine, command: Command<'_>) -> Replies<Payload> {
    let mut replies = Replies::default();
    let executed = engine.execute(&[command], &mut replies);
    assert!(engine.wait(executed.position));
    replies
}

/// A queue with tasks in every state, and everything else that a log can contain.
fn fill(engine: &Engine) {
    let day = 86_400_000;
    execute(
        engine,
        Command::Push { queue: b"mixed", payloads: &[b"ready", b"leased", b"dead", b"", &[0, 13, 10, 255]] },
    );
    execute(engine, Command::Add(Add { when: When::After(1_000 * day), ..Add::plain(b"mixed", b"delayed") }));
    let urgent = Add { priority: 9, name: Some(NameArg::Bytes(b"boss")), ..Add::plain(b"mixed", b"urgent") };
    execute(engine, Command::Add(urgent));
    let popped = execute(engine, Command::Pop(Pop::plain(&[b"mixed"], 4)));
    let id = |n: usize| popped.tasks[n].id.to_string();
    let back = |n: usize| Return {
        queue: b"mixed",
        task: TaskRef { bytes: id(n).leak().as_bytes(), form: IdForm::Long },
        to: None,
        failed: None,
        is_last: false,
    };
    execute(engine, Command::Return(back(0)));
    execute(engine, Command::Return(back(1)));
    let dead = [id(3)];
    let list = [dead[0].as_bytes()];
    let tasks = TaskRefs { list: &list, form: IdForm::Long };
    execute(engine, Command::Bury { queue: b"mixed", tasks });
    let started = execute(engine, Command::Worker(Worker::Start { name: b"w", ttl_ms: 1_000 * day }));
    assert!(matches!(started.list[0], Reply::Started(_)));
    execute(engine, Command::Push { queue: b"timed", payloads: &[b"x"] });
    let lease = LeaseAsk { ms: Some(1_000 * day), ..LeaseAsk::NONE };
    execute(engine, Command::Pop(Pop { lease, ..Pop::plain(&[b"timed"], 1) }));
    execute(
        engine,
        Command::Config {
            queue: b"settled",
            changes: Changes::List(&[Change::Tries(3), Change::MaxLength(7)]),
        },
    );
    execute(engine, Command::Pause { queue: b"settled" });
}

/// Pushes and acks tasks until old segments were removed, and some of the tasks that stay were copied forward.
fn churn(engine: &Engine) {
    let since = Instant::now();
    let second = golden(VERSION).join("00000000000000000002.seg");
    for n in 0.. {
        let status = engine.status();
        if status.copied_bytes > 0
            && status.checkpoints > 4
            && status.segments > 2
            && n > 10 * KEPT
            && !second.exists()
        {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{status:?}");
        if n % 10 == 0 && n < 10 * KEPT {
            execute(engine, Command::Push { queue: b"kept", payloads: &[b"kept"] });
        }
        let payload: &[u8] = &[b'x'; 700];
        execute(engine, Command::Push { queue: b"passing", payloads: &[payload; 8] });
        let popped = execute(engine, Command::Pop(Pop::plain(&[b"passing"], 8)));
        let ids: Vec<String> = popped.tasks.iter().map(|task| task.id.to_string()).collect();
        let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let scope = AckScope::LeasedOrLapsed;
        execute(engine, Command::Ack { queue: b"passing", tasks, scope });
    }
}

fn payloads(engine: &Engine, view: View) -> Vec<Vec<u8>> {
    let shown = execute(engine, Command::Inspect { queue: b"mixed", view, start: 0, count: 10 });
    shown.tasks.iter().map(|task| task.body.as_ref().to_vec()).collect()
}

fn check(engine: &Engine, version: u32) {
    if version > 1 {
        let look = Command::Inspect { queue: b"kept", view: View::Ready, start: 0, count: 10 };
        let shown = execute(engine, look);
        let kept = if version > 2 { KEPT } else { 4 };
        assert!(shown.tasks.len() == kept && shown.tasks.iter().all(|task| task.body.as_ref() == b"kept"));
    }
    if version > 2 {
        let look = Command::Inspect { queue: b"alike", view: View::Ready, start: 0, count: 1000 };
        let shown = execute(engine, look);
        let bodies: Vec<&[u8]> = shown.tasks.iter().map(|task| task.body.as_ref()).collect();
        assert_eq!(bodies, [vec![&b"="[..]; ALIKE], vec![b"another"]].concat());
        assert!(shown.tasks.windows(2).all(|pair| pair[0].id < pair[1].id));
    }
    assert_eq!(payloads(engine, View::Ready), [&b"urgent"[..], b"ready", b"", &[0, 13, 10, 255]]);
    assert_eq!(payloads(engine, View::Leased), [b"leased"]);
    assert_eq!(payloads(engine, View::Dead), [b"dead"]);
    assert_eq!(payloads(engine, View::Delayed), [b"delayed"]);
    let Reply::Settings(settings) =
        &execute(engine, Command::Config { queue: b"settled", changes: Changes::List(&[]) }).list[0]
    else {
        panic!("CONFIG answers settings");
    };
    assert_eq!((settings.tries, settings.max_length), (Some(3), Some(7)));
    assert_eq!(execute(engine, Command::Worker(Worker::List)).workers[0].name[..], b"w"[..]);
    let named = Add { name: Some(NameArg::Bytes(b"boss")), ..Add::plain(b"mixed", b"second") };
    assert!(matches!(execute(engine, Command::Add(named)).list[0], Reply::Added { added: false, .. }));
    engine.inspect(|broker| {
        let queue = |name: &[u8]| broker.queue(name).expect("it was made");
        assert_eq!(queue(b"timed").counts(), [0, 0, 1, 0]);
        assert!(queue(b"settled").info(engine.now()).paused.is_some());
        broker.check().expect("the state is consistent");
    });
}

#[test]
fn every_format_that_was_ever_written_opens() {
    if std::env::var_os("SUREQ_BLESS").is_some() && !golden(VERSION).exists() {
        let engine = open(&golden(VERSION));
        fill(&engine);
        execute(&engine, Command::Push { queue: b"alike", payloads: &[&b"="[..]; ALIKE + 1] });
        let look = Command::Inspect { queue: b"alike", view: View::Ready, start: 550, count: 1 };
        let id = execute(&engine, look).tasks[0].id.to_string();
        let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
        execute(&engine, Command::Delete { queue: b"alike", tasks });
        execute(&engine, Command::Push { queue: b"alike", payloads: &[b"another"] });
        churn(&engine);
        engine.close().unwrap();
        for file in fs::read_dir(golden(VERSION)).unwrap().map(Result::unwrap) {
            let name = file.file_name().into_string().unwrap();
            if name.starts_with("spare") || name == "lock" {
                fs::remove_file(file.path()).unwrap();
            }
        }
    }
    for version in 1..=VERSION {
        let dir = copied(version);
        open_and_check(dir.path(), version);
    }
}

/// A copy of the golden store, since opening a store writes to it.
fn copied(version: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("there is room for a directory");
    for file in fs::read_dir(golden(version)).expect("each format has its directory").map(Result::unwrap) {
        fs::copy(file.path(), dir.path().join(file.file_name())).expect("there is room for a file");
    }
    dir
}

fn open_and_check(dir: &Path, version: u32) {
    let engine = open(dir);
    engine.check().expect("the store is consistent");
    check(&engine, version);
    engine.close().expect("the disk works");
}

#[test]
fn every_format_that_was_ever_written_is_checked_copied_and_repaired() {
    for version in 1..=VERSION {
        let (dir, out) = (copied(version), tempfile::tempdir().unwrap());
        let from: Arc<dyn Disk> = Arc::new(ReadDisk::hold(dir.path()).unwrap());
        let report = sureq_engine::check::check(&from, &mut |_, _, _| ()).unwrap();
        assert!(report.is_sound() && report.refusal.is_none(), "{version}: {:#?}", report.findings);

        let to = |name: &str| -> (PathBuf, Arc<dyn Disk>) {
            let path = out.path().join(name);
            (path.clone(), Arc::new(DirDisk::make(path).unwrap()))
        };
        let (path, disk) = to("backup");
        let backup = sureq_engine::backup::backup(&from, &disk, Verify::Check, &mut |_, _, _| ()).unwrap();
        drop(disk);
        let copy = backup.report.expect("it was asked for");
        assert!(copy.is_sound() && copy.queues == report.queues, "{version}: {copy:#?}");
        assert_eq!((backup.position, copy.uuid), (report.end, report.uuid));
        open_and_check(&path, version);

        let (path, disk) = to("repaired");
        let clock = SystemClock::default();
        let repaired = sureq_engine::repair::repair(&from, &disk, &clock, &mut |_, _, _| ()).unwrap();
        drop(disk);
        assert!(repaired.is_complete(), "{version}: {repaired:#?}");
        assert_eq!(repaired.report.queues, report.queues);
        open_and_check(&path, version);
    }
}

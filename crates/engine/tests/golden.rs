//! A store that an earlier release wrote opens in this one, with all that was in it.
//!
//! `tests/golden/v1` was written by the release that introduced format 1 and is never changed; `v2`, whose log has lost a
//! part, by the one that introduced checkpoints. A new format gets a
//! directory of its own beside it: raise `VERSION`, run this test once with `SUREQ_BLESS=1`, commit what it made.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sureq_core::command::{Add, Command, LeaseAsk, NameArg, Pop, Return, TaskRef, View, When, Worker};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Replies, Reply};
use sureq_engine::{Body, Engine, Options};

const VERSION: u32 = 2;

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

fn open(dir: &Path) -> Engine {
    let options = Options { segment_bytes: Some(16 << 10), ..Options::default() };
    Engine::open(dir, &options).expect("a store of every format opens")
}

fn execute(engine: &Engine, command: Command<'_>) -> Replies<Body> {
    let mut replies = Replies::default();
    let executed = engine.execute(&[command], &mut replies);
    assert!(engine.wait(executed.position));
    replies
}

/// A queue with tasks in every state, and all else that a log can hold.
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
        task: TaskRef { bytes: id(n).leak().as_bytes(), form: sureq_core::command::IdForm::Long },
        to: None,
        failed: None,
        is_last: false,
    };
    execute(engine, Command::Return(back(0)));
    execute(engine, Command::Return(back(1)));
    let dead = [id(3)];
    let list = [dead[0].as_bytes()];
    let tasks = sureq_core::command::TaskRefs { list: &list, form: sureq_core::command::IdForm::Long };
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

/// Has tasks come and go until the log has lost a part, and some that stay were copied forward.
fn churn(engine: &Engine) {
    let since = Instant::now();
    let second = golden(VERSION).join("00000000000000000002.seg");
    for n in 0.. {
        let status = engine.status();
        if status.copied_bytes > 0
            && status.checkpoints > 4
            && status.segments > 2
            && n > 40
            && !second.exists()
        {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{status:?}");
        if n % 10 == 0 && n < 40 {
            execute(engine, Command::Push { queue: b"kept", payloads: &[b"kept"] });
        }
        let payload: &[u8] = &[b'x'; 700];
        execute(engine, Command::Push { queue: b"passing", payloads: &[payload; 8] });
        let popped = execute(engine, Command::Pop(Pop::plain(&[b"passing"], 8)));
        let ids: Vec<String> = popped.tasks.iter().map(|task| task.id.to_string()).collect();
        let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let tasks = sureq_core::command::TaskRefs { list: &list, form: sureq_core::command::IdForm::Long };
        let scope = sureq_core::command::AckScope::LeasedOrLapsed;
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
        assert!(shown.tasks.len() == 4 && shown.tasks.iter().all(|task| task.body.as_ref() == b"kept"));
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
        broker.check().expect("all is in its place");
    });
}

#[test]
fn every_format_that_was_ever_written_opens() {
    if std::env::var_os("SUREQ_BLESS").is_some() && !golden(VERSION).exists() {
        let engine = open(&golden(VERSION));
        fill(&engine);
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
        let dir = tempfile::tempdir().unwrap();
        for file in fs::read_dir(golden(version)).expect("each format has its directory").map(Result::unwrap)
        {
            fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        let engine = open(dir.path());
        engine.check().expect("the store agrees with itself");
        check(&engine, version);
        engine.close().unwrap();
    }
}

//! Commands whose events are larger than a segment. Without disk space for them they are refused before they are
//! executed, and they delay no other command. And a store that ends with such a frame starts on a full disk.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq_core::command::{AckScope, Add, IdForm, NameArg, Pop, TaskRefs};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};
use sureq_engine::check::check;
use sureq_engine::disk::Disk;
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::loop_image::{LoopImage, Tmpfs};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::until;
use sureq_testkit::sim_disk::{Kept, SimDisk};

const SEGMENT_BYTES: u64 = 64 << 10;

const LEVELS: [Durability; 3] = [Durability::Always, Durability::Interval, Durability::None];

fn options(durability: Durability, segment_bytes: u64) -> Options {
    Options { durability, segment_bytes: Some(segment_bytes), cache_bytes: 1024, ..Options::default() }
}

fn open(disk: Arc<dyn Disk>, options: &Options) -> Engine {
    Engine::open_on(disk, Arc::new(ManualClock::default()), options).unwrap()
}

/// Executes a command, which must be confirmed in bounded time.
fn execute(engine: &Engine, command: Command<'_>) -> Replies<Payload> {
    let mut replies = Replies::default();
    let executed = engine.execute(&[command], &mut replies);
    until("the reply may be sent", || engine.durable() >= executed.position || engine.failure().is_some());
    assert!(engine.failure().is_none(), "{:?}", engine.failure());
    replies
}

fn push(engine: &Engine, payload: &[u8]) -> Option<TaskId> {
    let replies = execute(engine, Command::Push { queue: b"q", payloads: &[payload] });
    match &replies.list[..] {
        [Reply::Refused(Refusal::NoSpace)] => None,
        [Reply::Pushed(_)] => Some(replies.ids[0]),
        other => panic!("{other:?}"),
    }
}

fn pop(engine: &Engine) -> Option<(TaskId, Vec<u8>)> {
    let replies = execute(engine, Command::Pop(Pop::plain(&[b"q"], 1)));
    replies.tasks.first().map(|task| (task.id, task.body.as_ref().to_vec()))
}

fn ack(engine: &Engine, id: TaskId) -> bool {
    let text = id.to_string();
    let tasks = TaskRefs { list: &[text.as_bytes()], form: IdForm::Long };
    let scope = AckScope::LeasedOrLapsed;
    execute(engine, Command::Ack { queue: b"q", tasks, scope }).indexes.len() == 1
}

fn oversized(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 / 7) as u8).collect()
}

/// Waits until all spare files are prepared.
fn wait_for_spares(disk: &SimDisk) {
    until("spares are prepared", || spares(disk) == 4);
}

fn spares(disk: &SimDisk) -> usize {
    disk.files().keys().filter(|name| name.starts_with("spare-")).count()
}

/// Names of segments are numbers with twenty digits.
fn is_segment(name: &str) -> bool {
    name.starts_with('0')
}

/// A task's name is logged with its payload, so that space is reserved for both.
#[test]
fn a_name_counts_towards_the_size_of_a_command() {
    let engine = open(SimDisk::new(1).shared(), &options(Durability::Always, SEGMENT_BYTES));
    let (payload, name) = (oversized(SEGMENT_BYTES as usize - 700), [b'n'; 4_000]);
    for (name, is_oversized) in [(None, false), (Some(NameArg::Bytes(&name)), true)] {
        let mut replies = Replies::default();
        let add = Command::Add(Add { name, ..Add::plain(b"q", &payload) });
        let executed = engine.submit(&[add], &mut replies);
        engine.commit();
        let ticket = executed.into_ticket();
        assert_eq!(ticket.is_some(), is_oversized);
        if let Some(ticket) = ticket {
            replies.append(ticket.wait().replies);
        }
        assert!(matches!(replies.list[..], [Reply::Added { added: true, .. }]), "{:?}", replies.list);
    }
    assert_eq!(pop(&engine).map(|(_, popped)| popped), Some(payload.clone()));
    assert_eq!(pop(&engine).map(|(_, popped)| popped), Some(payload));
}

#[test]
fn a_push_larger_than_the_free_space_is_refused_and_delays_no_other() {
    for level in LEVELS {
        let disk = SimDisk::new(7);
        let engine = open(disk.shared(), &options(level, SEGMENT_BYTES));
        let first = push(&engine, b"first").unwrap();
        wait_for_spares(&disk);
        disk.leave_room(Some(10 * SEGMENT_BYTES));
        for _ in 0..3 {
            assert_eq!(push(&engine, &oversized(11 * SEGMENT_BYTES as usize)), None, "{level:?}");
        }
        // Many small payloads are as large together.
        let payload = oversized(1000);
        let batch = vec![&payload[..]; 11 * SEGMENT_BYTES as usize / 1000];
        let replies = execute(&engine, Command::Push { queue: b"q", payloads: &batch });
        assert_eq!(replies.list, [Reply::Refused(Refusal::NoSpace)], "{level:?}");
        assert!(push(&engine, b"small").is_some(), "there is room for it");
        assert_eq!(pop(&engine).unwrap().0, first);
        assert!(ack(&engine, first));
        // A push that fits is accepted, and any push once there is space.
        let fits = oversized(4 * SEGMENT_BYTES as usize);
        assert!(push(&engine, &fits).is_some(), "{level:?}");
        disk.leave_room(None);
        let large = oversized(11 * SEGMENT_BYTES as usize);
        until("there is room", || push(&engine, &large).is_some());
        engine.close().unwrap();
        let engine = open(disk.crash(Kept::Nothing, Kept::Nothing).shared(), &options(level, SEGMENT_BYTES));
        let payloads: Vec<Vec<u8>> =
            std::iter::from_fn(|| pop(&engine)).map(|(_, payload)| payload).collect();
        assert!(payloads == [b"small".to_vec(), fits, large], "{level:?}");
        engine.close().unwrap();
    }
}

/// A reserved file that the command did not need is removed.
#[test]
fn unused_reserved_space_is_released() {
    let disk = SimDisk::new(7);
    let engine = open(disk.shared(), &options(Durability::Always, SEGMENT_BYTES));
    let id = push(&engine, b"there").unwrap();
    wait_for_spares(&disk);
    // Too many ids for a segment, none of which is the id of a task.
    let texts: Vec<String> = (0..10_000).map(|n| format!("{}-{}", id.ms() - 1, n + 1)).collect();
    let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    for _ in 0..3 {
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let replies = execute(&engine, Command::Delete { queue: b"q", tasks });
        assert_eq!(replies.list, [Reply::Count(0)]);
        assert_eq!(spares(&disk), 4);
    }
    // A command that is refused for another reason needs no space either.
    let large = oversized(3 * SEGMENT_BYTES as usize);
    let long = vec![b'q'; 1 << 20];
    let replies = execute(&engine, Command::Push { queue: &long, payloads: &[&large] });
    assert!(matches!(replies.list[0], Reply::Refused(_)), "{:?}", replies.list);
    assert_eq!(spares(&disk), 4);
    engine.close().unwrap();
}

#[test]
fn a_store_whose_tail_is_larger_than_a_segment_starts_on_a_full_disk() {
    for level in LEVELS {
        let disk = SimDisk::new(7);
        let options = options(level, SEGMENT_BYTES);
        let engine = open(disk.shared(), &options);
        wait_for_spares(&disk);
        let (small, large) = (oversized(100), oversized(9 * SEGMENT_BYTES as usize));
        push(&engine, &small).unwrap();
        push(&engine, &large).unwrap();
        engine.close().unwrap();
        let disk = disk.crash(Kept::Nothing, Kept::Nothing);
        disk.leave_room(Some(0));
        for _ in 0..3 {
            let report = check(&disk.shared(), &mut |_, _, _| ()).unwrap();
            assert!(report.is_sound(), "{level:?}: {:?}", report.findings);
            open(disk.shared(), &options).close().unwrap();
        }
        let engine = open(disk.shared(), &options);
        assert_eq!(push(&engine, &large), None, "{level:?}");
        for payload in [small, large] {
            let (id, popped) = pop(&engine).unwrap();
            assert!(popped == payload && ack(&engine, id), "{level:?}");
        }
        engine.close().unwrap();
        open(disk.shared(), &options).close().unwrap();
    }
}

/// The power is cut at every step of a start that keeps its tail, and of the one after it.
#[test]
fn a_start_that_keeps_its_tail_survives_a_crash_at_every_step() {
    let disk = SimDisk::new(7);
    let options = options(Durability::Always, SEGMENT_BYTES);
    let engine = open(disk.shared(), &options);
    let large = oversized(2 * SEGMENT_BYTES as usize);
    let id = push(&engine, &large).unwrap();
    engine.close().unwrap();
    let files = disk.files();
    let started = SimDisk::with_files(7, &files);
    open(started.shared(), &options).close().unwrap();
    for step in 0..started.trace_len() {
        let disk = SimDisk::with_files(7, &files);
        let trace = started.trace();
        trace[..step].iter().for_each(|op| disk.replay(op));
        for kept in [Kept::Nothing, Kept::Everything] {
            let cut = disk.crash(kept, kept);
            let engine = open(cut.shared(), &options);
            assert!(pop(&engine) == Some((id, large.clone())), "step {step}: {:?}", trace[step]);
            engine.close().unwrap();
        }
    }
}

/// If the newest segment is shorter than its header, the power was cut while it was created. The segment before it is
/// kept unchanged, with its payloads.
#[test]
fn payloads_before_an_incomplete_segment_keep_their_places() {
    let disk = SimDisk::new(7);
    let options = Options { keeps_log: true, ..options(Durability::Always, 4096) };
    let engine = open(disk.shared(), &options);
    let payloads: Vec<Vec<u8>> = (0..6).map(|n| vec![n; 900]).collect();
    for payload in &payloads {
        push(&engine, payload).unwrap();
    }
    engine.close().unwrap();
    let newest = disk.files().into_keys().rfind(|name| is_segment(name)).unwrap();
    disk.edit(&newest, |bytes| bytes.truncate(10));
    let engine = open(disk.shared(), &options);
    let found: Vec<Vec<u8>> = std::iter::from_fn(|| pop(&engine)).map(|(_, payload)| payload).collect();
    assert!(found.len() >= 3 && payloads.starts_with(&found), "{} of them", found.len());
    engine.close().unwrap();
}

/// A start knows all segments, however full the last one is: its own frame may begin a new segment.
#[test]
fn a_start_knows_the_segment_that_it_begins() {
    let disk = SimDisk::new(7);
    let options = Options { keeps_log: true, ..options(Durability::Always, 4096) };
    let segments = || disk.files().keys().filter(|name| is_segment(name)).count() as u64;
    let mut has_rolled = 0;
    for bytes in (0..3000).step_by(64) {
        let before = segments();
        let engine = open(disk.shared(), &options);
        assert_eq!(engine.status().segments, segments(), "behind {bytes} bytes");
        has_rolled += usize::from(before > 0 && segments() > before);
        push(&engine, &oversized(bytes)).unwrap();
        engine.close().unwrap();
    }
    assert!(has_rolled > 0, "some start must begin a segment");
}

/// A real disk with 8 MB of free space, and a push of 10 MB.
fn push_too_much(dir: &Path) {
    let options = options(Durability::Always, 1 << 20);
    let engine = Engine::open(dir, &options).unwrap();
    until("the spares are prepared", || engine.status().disk_free_bytes < 9 << 20);
    let first = push(&engine, b"first").unwrap();
    let (machine, since) = (MachineWatch::start(), Instant::now());
    assert_eq!(push(&engine, &oversized(10 << 20)), None);
    assert_eq!(pop(&engine).unwrap().0, first);
    assert!(ack(&engine, first));
    machine.assert_within(since.elapsed(), Duration::from_secs(10), "the commands after the large push");
    let large = oversized(4 << 20);
    let id = push(&engine, &large).unwrap();
    engine.close().unwrap();
    drop(engine);
    // Another file fills the disk, and the tail is larger than a segment.
    let filler = dir.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[b'x'; 4096]).is_ok() {}
    drop(file);
    let engine = Engine::open(dir, &options).unwrap();
    assert!(pop(&engine) == Some((id, large)));
    assert!(ack(&engine, id));
    engine.close().unwrap();
}

#[test]
fn a_push_larger_than_a_small_tmpfs_is_refused() {
    let disk = Tmpfs::new("size=13m");
    push_too_much(disk.path());
}

#[test]
fn a_push_larger_than_a_small_ext4_is_refused() {
    let disk = LoopImage::new(16 << 20);
    push_too_much(disk.path());
}

//! Rule 10 on real disks: without free space, or beyond a quota, pushes are refused, tasks can still be taken and
//! finished, and the server recovers by itself when there is space again. A disk that accepts no changes at all ends
//! the server.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::btrfs::{Btrfs, Quota};
use sureq_testkit::client::{RespClient, Value, encode, set_patience};
use sureq_testkit::loop_image::{LoopImage, Tmpfs};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::patience::until;
use sureq_testkit::server_process::{Launch, Server};

use crate::{scratch, serve};

const DISK_FAILED: i32 = 74;

/// The number of tasks that are taken and finished on a full disk, one by one.
const FINISHED: usize = 10_000;

/// The number of clients that do so.
const CLIENTS: usize = 16;

/// How the disk is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filler {
    /// By pushes.
    Pushes,
    /// By another file.
    File,
    /// By too many other files, which take no space.
    Files,
}

/// The ids of existing tasks.
type Ids = BTreeSet<String>;

fn push_of(queue: &str, bytes: usize) -> Vec<u8> {
    encode(&[b"RQ.PUSH".as_slice(), queue.as_bytes(), &vec![b'x'; bytes]])
}

/// Pushes many tasks at once; returns the confirmed ids, and the first refusal.
fn push_many(client: &mut RespClient, count: usize, bytes: usize) -> (Vec<String>, Option<String>) {
    push_all(client, count, &push_of("q", bytes).repeat(count))
}

/// The same with any commands.
fn push_all(client: &mut RespClient, count: usize, commands: &[u8]) -> (Vec<String>, Option<String>) {
    client.send_raw(commands).expect("the server reads");
    let (mut ids, mut refused) = (Vec::new(), None);
    for _ in 0..count {
        match client.reply() {
            Value::Error(error) => refused = refused.or(Some(error)),
            reply => ids.extend(reply.ids()),
        }
    }
    (ids, refused)
}

/// Pushes until a push is refused for lack of space.
fn push_until_refused(mut push: impl FnMut() -> (Vec<String>, Option<String>), ids: &mut Ids) {
    let since = Instant::now();
    loop {
        let (confirmed, refused) = push();
        ids.extend(confirmed);
        if let Some(refused) = refused {
            assert!(is_no_space(&refused), "{refused}");
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the disk is full, and no push is refused");
    }
}

fn is_no_space(refused: &str) -> bool {
    refused.starts_with("NOSPACE no space left on the disk")
}

/// Whether the server reports that the disk is full.
fn is_full(client: &mut RespClient) -> bool {
    says_full(client.say("INFO persistence"))
}

fn says_full(info: Value) -> bool {
    info.text().lines().any(|line| line == "disk_full:1")
}

/// Tries a push between two reads of the server's state: if the disk is full before and after it, the push must be
/// refused. Returns the id of the pushed task.
fn try_push(client: &mut RespClient) -> Option<String> {
    let look = encode(&["INFO", "persistence"]);
    client.send_raw(&[&look[..], &push_of("q", 100), &look].concat()).expect("the server reads");
    let was_full = says_full(client.reply());
    let pushed = client.reply();
    let is_full = says_full(client.reply());
    match pushed {
        Value::Error(refused) => {
            assert!(is_no_space(&refused), "{refused}");
            None
        }
        pushed => {
            assert!(!(was_full && is_full), "a push succeeded on a full disk");
            pushed.ids().pop()
        }
    }
}

/// The number of tasks that a client finishes before it tries a push.
const FINISHED_PER_PUSH: usize = 100;

/// Takes and finishes `count` tasks one by one; returns how many pushes were refused meanwhile.
fn finish(server: &Server, count: usize, ids: &mut Ids) -> usize {
    let (shared, refused) = (Mutex::new(std::mem::take(ids)), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = server.client();
                for n in 0..count / CLIENTS {
                    if n % FINISHED_PER_PUSH == 0 {
                        let pushed = try_push(&mut client);
                        refused.fetch_add(usize::from(pushed.is_none()), Ordering::Relaxed);
                        shared.lock().expect("no panic").extend(pushed);
                    }
                    let task = client.pop("q", 1).pop().expect("there are more");
                    assert!(client.ack("q", &task.id), "{} is finished once", task.id);
                    assert!(shared.lock().expect("no panic").remove(&task.id), "{} was pushed", task.id);
                }
            });
        }
    });
    *ids = shared.into_inner().expect("no panic");
    refused.into_inner()
}

/// The other commands that remove or keep tasks work on a full disk as well.
fn extend_return_cancel_and_delete(client: &mut RespClient, ids: &mut Ids) {
    let pop = |client: &mut RespClient| {
        let task = client.say("RQ.POP LEASE 60000 q").tasks().pop().expect("there are more");
        assert_eq!(client.say(&format!("RQ.EXTEND q {} 90000", task.id)), Value::Int(1));
        task.id
    };
    for _ in 0..50 {
        let id = pop(client);
        assert_eq!(client.say(&format!("RQ.RETURN q {id}")), Value::Int(1));
        assert_eq!(client.say(&format!("RQ.CANCEL q ID {id}")), Value::Int(1));
        assert!(ids.remove(&id), "{id} was pushed");
        let id = pop(client);
        assert_eq!(client.say(&format!("RQ.DELETE q {id}")), Value::Int(1));
        assert!(ids.remove(&id), "{id} was pushed");
    }
}

/// Takes all remaining tasks and compares them with the expected ones.
fn drain(client: &mut RespClient, ids: &mut Ids) {
    take_all(client, ids);
    assert!(ids.is_empty(), "{} tasks are lost", ids.len());
}

/// Takes and finishes all waiting tasks.
fn take_all(client: &mut RespClient, ids: &mut Ids) {
    for queue in ["q", STAYS] {
        loop {
            let tasks = client.pop(queue, 500);
            if tasks.is_empty() {
                break;
            }
            let taken: Vec<String> = tasks.into_iter().map(|task| task.id).collect();
            let ack = ["RQ.ACK", queue].into_iter().chain(taken.iter().map(String::as_str));
            assert_eq!(client.command(&ack.collect::<Vec<_>>()).ids(), taken);
            for id in taken {
                assert!(ids.remove(&id), "{id} was pushed");
            }
        }
    }
}

fn push_within_a_second(client: &mut RespClient) {
    let (machine, since) = (MachineWatch::start(), Instant::now());
    while let Value::Error(error) = client.say("RQ.PUSH later x") {
        let what = format_args!("there is space again, but: {error}; a push");
        machine.assert_within(since.elapsed(), Duration::from_secs(1), what);
    }
}

/// Takes all remaining space; returns the files that do.
fn fill(mount: &Path, filler: Filler) -> Vec<PathBuf> {
    let mut files = Vec::new();
    match filler {
        Filler::Pushes => {}
        Filler::File => {
            files.push(mount.join("filler"));
            let mut file = File::create(&files[0]).expect("the file can be written");
            while file.write_all(&[b'x'; 4096]).is_ok() {}
            file.sync_all().expect("the file is on disk");
        }
        Filler::Files => loop {
            let path = mount.join(format!("filler-{}", files.len()));
            match File::create(&path) {
                Ok(_) => files.push(path),
                Err(_) => break,
            }
        },
    }
    files
}

const FULL: &str = "disk of the store is full";

/// Checks that the server warned about little space before it reported a full disk, and refused nothing before that.
fn expect_warning(server: &Server) {
    server.find_in_stderr(|line| line.contains(FULL).then_some(()));
    let said = server.stderr_so_far();
    let (warned, full) = (said.find("is almost full"), said.find(FULL));
    assert!(warned.is_some() && warned < full, "{said}");
}

/// A queue whose tasks are not popped.
const STAYS: &str = "stays";

/// Fills the disk with tasks most of which stay, so that finishing the others frees no space.
fn fill_with_pairs(client: &mut RespClient, ids: &mut Ids) {
    let pairs = [push_of("q", 100), push_of(STAYS, 1500)].concat().repeat(50);
    push_until_refused(|| push_all(client, 100, &pairs), ids);
}

/// Without a restart: a full disk refuses pushes and allows everything else; a drained queue accepts pushes again.
fn check_one_life(launch: &Launch, count: usize) {
    let server = launch.start();
    let (mut client, mut ids) = (server.client(), Ids::new());
    fill_with_pairs(&mut client, &mut ids);
    assert!(is_full(&mut client), "pushes are refused");
    expect_warning(&server);
    let refused = finish(&server, count, &mut ids);
    extend_return_cancel_and_delete(&mut client, &mut ids);
    assert!(refused >= CLIENTS, "only {refused} pushes were refused");
    drain(&mut client, &mut ids);
    push_within_a_second(&mut client);
    assert!(!is_full(&mut client), "pushes are accepted");
    assert_eq!(client.pop("later", 10).len(), 1);
}

fn check(mount: &Path, filler: Filler) {
    let launch = serve(&mount.join("data"));
    let mut server = launch.start();
    let (mut client, mut ids) = (server.client(), Ids::new());
    let (bytes, before) = if filler == Filler::Pushes { (1000, 0) } else { (100, FINISHED + 3_000) };
    for _ in 0..before / 500 {
        ids.extend(push_many(&mut client, 500, bytes).0);
    }
    let files = fill(mount, filler);
    push_until_refused(|| push_many(&mut client, 100, bytes), &mut ids);
    server.find_in_stderr(|line| line.contains(FULL).then_some(()));
    if filler == Filler::Pushes {
        expect_warning(&server);
    }
    finish(&server, FINISHED / 2, &mut ids);
    server.kill9();

    let server = launch.start();
    finish(&server, FINISHED / 2, &mut ids);
    let mut client = server.client();
    for file in files {
        std::fs::remove_file(file).expect("it exists");
    }
    if filler == Filler::Pushes {
        drain(&mut client, &mut ids);
    }
    push_within_a_second(&mut client);
    drain(&mut client, &mut ids);
}

#[test]
fn a_small_disk_in_memory_that_is_filled_by_pushes() {
    check(Tmpfs::new("size=32m").path(), Filler::Pushes);
}

#[test]
fn a_small_disk_in_memory_that_is_filled_by_another_file() {
    check(Tmpfs::new("size=32m").path(), Filler::File);
}

#[test]
fn a_small_disk_in_memory_that_has_no_more_files() {
    check(Tmpfs::new("size=32m,nr_inodes=64").path(), Filler::Files);
}

#[test]
fn a_small_disk_that_is_filled_by_pushes() {
    check(LoopImage::new(64 << 20).path(), Filler::Pushes);
}

#[test]
fn a_small_disk_that_is_filled_by_another_file() {
    check(LoopImage::new(64 << 20).path(), Filler::File);
}

#[test]
fn a_small_disk_that_has_no_more_files() {
    check(LoopImage::with(64 << 20, &["-N", "64"]).path(), Filler::Files);
}

#[test]
fn a_shortage_of_files_is_reported_in_advance() {
    let tmpfs = Tmpfs::new("size=64m,nr_inodes=300");
    let server = serve(&tmpfs.path().join("data")).start();
    let mut client = server.client();
    let info = client.say("INFO persistence").text();
    let field = |name: &str| -> u64 {
        let value = info.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} is a number: {info}"))
    };
    assert_eq!(field("segment_bytes:"), 1 << 20, "a 64th of the disk");
    assert!((32 << 20..64 << 20).contains(&field("disk_free_bytes:")), "{info}");
    client.push("q", "x");
    for n in 0..260 {
        File::create(tmpfs.path().join(format!("filler-{n}"))).expect("the file can be written");
    }
    server.find_in_stderr(|line| (line.contains("is almost full") && line.contains("inodes")).then_some(()));
    assert!(!server.stderr_so_far().contains("MB are left"), "there is room for bytes");
    client.push("q", "there is still room");
}

#[test]
fn a_full_disk_in_memory_without_a_restart() {
    let disk = Tmpfs::new("size=32m");
    check_one_life(&serve(&disk.path().join("data")), FINISHED);
}

#[test]
fn a_full_disk_without_a_restart() {
    let disk = LoopImage::new(64 << 20);
    check_one_life(&serve(&disk.path().join("data")), FINISHED);
}

/// A file system that writes changed data elsewhere, unless a file disables that.
#[test]
fn a_full_disk_with_copy_on_write_without_a_restart() {
    let disk = Btrfs::new(128 << 20);
    check_one_life(&serve(&disk.path().join("data")).args(["--segment-bytes", "512KB"]), 2_000);
}

/// Takes and finishes `count` tasks, or ends when the server does not answer.
fn finish_while_answered(client: &mut RespClient, count: usize, ids: &mut Ids) -> io::Result<()> {
    set_patience(client.stream(), Duration::from_secs(2));
    for _ in 0..count {
        client.send_raw(&encode(&["RQ.POP", "q"]))?;
        let id = client.read()?.tasks().pop().expect("there are more").id;
        client.send_raw(&encode(&["RQ.ACK", "q", &id]))?;
        assert_eq!(client.read()?.ids(), [id.as_str()]);
        assert!(ids.remove(&id), "{id} was pushed");
    }
    Ok(())
}

/// At the limit of a quota, btrfs can neither create a name nor overwrite data, which may end the server. Pushes are
/// refused before that, and no task is lost.
#[test]
fn a_quota_that_is_used_up_and_raised_loses_nothing() {
    let quota = Quota::new(32 << 20);
    // A store cannot see its quota, and would make its segments as large as the disk suggests.
    let launch = serve(&quota.path().join("data")).args(["--segment-bytes", "512KB"]);
    let (mut server, mut ids) = (launch.start(), Ids::new());
    let mut client = server.client();
    fill_with_pairs(&mut client, &mut ids);
    let finished = finish_while_answered(&mut client, 1000, &mut ids);
    quota.limit(128 << 20);
    if finished.is_err() && server.ends_within(Duration::from_secs(2)) {
        assert_eq!(server.exit_code(Duration::ZERO), DISK_FAILED, "{}", *server);
        assert!(server.stderr().contains("Disk quota exceeded"), "{}", *server);
        server = launch.start();
    }
    let mut client = server.client();
    until("pushes are accepted again", || !matches!(client.say("RQ.PUSH later x"), Value::Error(_)));
    // Tasks whose delivery was never reported have no holder.
    for task in client.say("RQ.RECOVER q 10 0").list() {
        let id = task.field(0);
        assert!(client.ack("q", &id) && ids.remove(&id), "{id} was pushed");
    }
    take_all(&mut client, &mut ids);
    assert!(ids.len() <= usize::from(finished.is_err()), "{} tasks are lost", ids.len());
}

/// Any file system with a quota: the kernel reports for a while that there is no space.
#[test]
fn a_quota_that_the_kernel_reports() {
    let dir = scratch();
    let launch = serve(&dir.path().join("data")).args(["--segment-bytes", "64KB"]);
    let (mut ids, mut first) = (Ids::new(), launch.start());
    ids.extend(push_many(&mut first.client(), 500, 100).0);
    first.kill9();
    // The preallocator of segments retries twice a second.
    let inject = "inject=fallocate:error=EDQUOT:when=1..12";
    let strace = ["strace", "-f", "--seccomp-bpf", "-e", "trace=fallocate", "-e", inject, "-o", "/dev/null"];
    let server = launch.under(strace).start();
    let mut client = server.client();
    push_until_refused(|| push_many(&mut client, 100, 100), &mut ids);
    assert!(is_full(&mut client), "pushes are refused");
    assert!(finish(&server, 480, &mut ids) > 0, "pushes are refused");
    until("pushes are accepted again", || !is_full(&mut client));
    push_within_a_second(&mut client);
    drain(&mut client, &mut ids);
}

#[test]
fn a_read_only_disk_ends_the_server_and_prevents_its_start() {
    let image = LoopImage::new(64 << 20);
    let launch = serve(&image.path().join("data"));
    let mut server = launch.start();
    let mut client = server.client();
    client.push("q", "kept");
    image.make_read_only();
    client.send_raw(&encode(&["RQ.PUSH", "q", "lost"])).expect("the server reads");
    assert!(!matches!(client.read(), Ok(Value::Array(_))), "nothing can be confirmed");
    assert_eq!(server.exit_code(Duration::from_secs(5)), DISK_FAILED, "{}", *server);
    // A sync that was in progress fails with a different error.
    let reasons = ["Read-only file system", "Input/output error"];
    assert!(reasons.iter().any(|reason| server.stderr().contains(reason)), "{}", *server);

    let mut refused = launch.spawn();
    assert_eq!(refused.exit_code(Duration::from_secs(5)), 1, "{refused}");
    assert!(refused.stderr().contains("Read-only file system"), "{refused}");
}

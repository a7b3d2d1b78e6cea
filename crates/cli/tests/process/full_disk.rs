//! Rule 10 on real disks: where there is no room left, or no more is allowed, pushes are refused, tasks are taken and finished
//! all the same, and it passes by itself when there is room. A disk that takes no changes at all ends the server.

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

/// So many tasks are taken and finished on a full disk, one by one.
const FINISHED: usize = 10_000;

/// How many clients share in that.
const CLIENTS: usize = 16;

/// Who takes the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filler {
    /// Those who push.
    Pushes,
    /// Another file.
    File,
    /// Other files, which take no room but are too many.
    Files,
}

/// The ids of tasks that are there.
type Ids = BTreeSet<String>;

fn push_of(queue: &str, bytes: usize) -> Vec<u8> {
    encode(&[b"RQ.PUSH".as_slice(), queue.as_bytes(), &vec![b'x'; bytes]])
}

/// Pushes many at once; answers what was confirmed, and the first refusal.
fn push_many(client: &mut RespClient, count: usize, bytes: usize) -> (Vec<String>, Option<String>) {
    push_all(client, count, &push_of("q", bytes).repeat(count))
}

/// The same with pushes of any kind.
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

/// Pushes until it is told that there is no room.
fn push_until_refused(mut push: impl FnMut() -> (Vec<String>, Option<String>), ids: &mut Ids) {
    let since = Instant::now();
    loop {
        let (confirmed, refused) = push();
        ids.extend(confirmed);
        if let Some(refused) = refused {
            assert!(is_no_space(&refused), "{refused}");
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the disk is full, and nobody says so");
    }
}

fn is_no_space(refused: &str) -> bool {
    refused.starts_with("NOSPACE no space left on the disk")
}

/// Whether the server says that the disk is full.
fn is_full(client: &mut RespClient) -> bool {
    says_full(client.say("INFO persistence"))
}

fn says_full(info: Value) -> bool {
    info.text().lines().any(|line| line == "disk_full:1")
}

/// Tries a push between two looks at what the server says: whoever is full before and after refuses it. Answers the task
/// that was pushed.
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
            assert!(!(was_full && is_full), "the disk is full, and a push is taken");
            pushed.ids().pop()
        }
    }
}

/// How many tasks a client finishes before it tries a push.
const FINISHED_PER_PUSH: usize = 100;

/// Takes so many tasks one by one and finishes each; answers how many pushes were refused meanwhile.
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

/// Whatever else takes tasks away or keeps them goes on as well.
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

/// Takes all that is left and compares it with what must be.
fn drain(client: &mut RespClient, ids: &mut Ids) {
    take_all(client, ids);
    assert!(ids.is_empty(), "{} tasks are lost", ids.len());
}

/// Takes and finishes all that waits.
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
        let what = format_args!("there is room, and yet: {error}; a push");
        machine.assert_within(since.elapsed(), Duration::from_secs(1), what);
    }
}

/// Takes all the room that is left; answers the files that did.
fn fill(mount: &Path, filler: Filler) -> Vec<PathBuf> {
    let mut files = Vec::new();
    match filler {
        Filler::Pushes => {}
        Filler::File => {
            files.push(mount.join("filler"));
            let mut file = File::create(&files[0]).expect("there is room");
            while file.write_all(&[b'x'; 4096]).is_ok() {}
            file.sync_all().expect("what was taken is there");
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

/// It was said that there is little room before it was said that there is none, and before that nothing is refused.
fn expect_warning(server: &Server) {
    server.find_in_stderr(|line| line.contains(FULL).then_some(()));
    let said = server.stderr_so_far();
    let (warned, full) = (said.find("is almost full"), said.find(FULL));
    assert!(warned.is_some() && warned < full, "{said}");
}

/// A queue that nobody takes from.
const STAYS: &str = "stays";

/// Fills the disk with tasks of which most stay, so that no room comes back with the others.
fn fill_with_pairs(client: &mut RespClient, ids: &mut Ids) {
    let pairs = [push_of("q", 100), push_of(STAYS, 1500)].concat().repeat(50);
    push_until_refused(|| push_all(client, 100, &pairs), ids);
}

/// All in one life of the server: full, it takes no pushes and all else; drained, it takes them again.
fn check_one_life(launch: &Launch, count: usize) {
    let server = launch.start();
    let (mut client, mut ids) = (server.client(), Ids::new());
    fill_with_pairs(&mut client, &mut ids);
    assert!(is_full(&mut client), "it refuses pushes");
    expect_warning(&server);
    let refused = finish(&server, count, &mut ids);
    extend_return_cancel_and_delete(&mut client, &mut ids);
    assert!(refused >= CLIENTS, "only {refused} pushes were refused");
    drain(&mut client, &mut ids);
    push_within_a_second(&mut client);
    assert!(!is_full(&mut client), "it takes pushes");
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
        std::fs::remove_file(file).expect("it is there");
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
fn a_small_disk_in_memory_that_is_filled_by_others() {
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
fn a_small_disk_that_is_filled_by_others() {
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
        File::create(tmpfs.path().join(format!("filler-{n}"))).expect("there is room");
    }
    server.find_in_stderr(|line| (line.contains("is almost full") && line.contains("inodes")).then_some(()));
    assert!(!server.stderr_so_far().contains("MB are left"), "there is room for bytes");
    client.push("q", "there is still room");
}

#[test]
fn a_full_disk_in_memory_in_one_life_of_the_server() {
    let disk = Tmpfs::new("size=32m");
    check_one_life(&serve(&disk.path().join("data")), FINISHED);
}

#[test]
fn a_full_disk_in_one_life_of_the_server() {
    let disk = LoopImage::new(64 << 20);
    check_one_life(&serve(&disk.path().join("data")), FINISHED);
}

/// Where what is written over is written elsewhere, unless a file asks for its place.
#[test]
fn a_full_disk_that_copies_on_write_in_one_life_of_the_server() {
    let disk = Btrfs::new(128 << 20);
    check_one_life(&serve(&disk.path().join("data")).args(["--segment-bytes", "512KB"]), 2_000);
}

/// Takes and finishes tasks until it has finished so many, or is not answered any more.
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

/// At the limit of a quota btrfs has no room for a name, nor to write over what is there: that may end the server. Pushes are
/// refused before, and nothing is lost by it.
#[test]
fn a_quota_that_is_used_up_and_raised_loses_nothing() {
    let quota = Quota::new(32 << 20);
    // A store cannot see how much it may take, and would make its segments as large as the disk suggests.
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
    until("it takes pushes again", || !matches!(client.say("RQ.PUSH later x"), Value::Error(_)));
    // What nobody was told of is held by nobody.
    for task in client.say("RQ.RECOVER q 10 0").list() {
        let id = task.field(0);
        assert!(client.ack("q", &id) && ids.remove(&id), "{id} was pushed");
    }
    take_all(&mut client, &mut ids);
    assert!(ids.len() <= usize::from(finished.is_err()), "{} tasks are lost", ids.len());
}

/// What the kernel says of a quota, on any file system: there is no room to be had for a while.
#[test]
fn a_quota_that_the_kernel_reports() {
    let dir = scratch();
    let launch = serve(&dir.path().join("data")).args(["--segment-bytes", "64KB"]);
    let (mut ids, mut first) = (Ids::new(), launch.start());
    ids.extend(push_many(&mut first.client(), 500, 100).0);
    first.kill9();
    // Whoever prepares segments asks twice a second.
    let inject = "inject=fallocate:error=EDQUOT:when=1..12";
    let strace = ["strace", "-f", "--seccomp-bpf", "-e", "trace=fallocate", "-e", inject, "-o", "/dev/null"];
    let server = launch.under(strace).start();
    let mut client = server.client();
    push_until_refused(|| push_many(&mut client, 100, 100), &mut ids);
    assert!(is_full(&mut client), "it refuses pushes");
    assert!(finish(&server, 480, &mut ids) > 0, "it refuses pushes");
    until("it takes pushes again", || !is_full(&mut client));
    push_within_a_second(&mut client);
    drain(&mut client, &mut ids);
}

#[test]
fn a_disk_that_becomes_read_only_ends_the_server_and_keeps_it_from_starting() {
    let image = LoopImage::new(64 << 20);
    let launch = serve(&image.path().join("data"));
    let mut server = launch.start();
    let mut client = server.client();
    client.push("q", "kept");
    image.make_read_only();
    client.send_raw(&encode(&["RQ.PUSH", "q", "lost"])).expect("the server reads");
    assert!(!matches!(client.read(), Ok(Value::Array(_))), "nothing can be confirmed any more");
    assert_eq!(server.exit_code(Duration::from_secs(5)), DISK_FAILED, "{}", *server);
    // A sync that was under way fails in its own words.
    let reasons = ["Read-only file system", "Input/output error"];
    assert!(reasons.iter().any(|reason| server.stderr().contains(reason)), "{}", *server);

    let mut refused = launch.spawn();
    assert_eq!(refused.exit_code(Duration::from_secs(5)), 1, "{refused}");
    assert!(refused.stderr().contains("Read-only file system"), "{refused}");
}

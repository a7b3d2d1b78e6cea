//! Rule 10 on real disks: where there is no room left, pushes are refused, tasks are taken and finished all the same, and it
//! passes by itself when there is room. A disk that takes no changes at all ends the server.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::loop_image::{LoopImage, Tmpfs};
use sureq_testkit::server_process::Server;

use crate::serve;

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

/// Pushes many at once; answers what was confirmed, and the first refusal.
fn push_many(client: &mut RespClient, count: usize, bytes: usize) -> (Vec<String>, Option<String>) {
    let payload = vec![b'x'; bytes];
    let commands = encode(&[b"RQ.PUSH".as_slice(), b"q", &payload]).repeat(count);
    client.send_raw(&commands).expect("the server reads");
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
fn push_until_refused(client: &mut RespClient, bytes: usize, ids: &mut Ids) {
    let since = Instant::now();
    loop {
        let (confirmed, refused) = push_many(client, 100, bytes);
        ids.extend(confirmed);
        if let Some(refused) = refused {
            assert!(refused.starts_with("NOSPACE no space left on the disk"), "{refused}");
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the disk is full, and nobody says so");
    }
}

/// Takes so many tasks one by one and finishes each.
fn finish(server: &Server, count: usize, ids: &mut Ids) {
    let shared = Mutex::new(std::mem::take(ids));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..count / CLIENTS {
                    let task = client.pop("q", 1).pop().expect("there are more");
                    assert!(client.ack("q", &task.id), "{} is finished once", task.id);
                    assert!(shared.lock().expect("no panic").remove(&task.id), "{} was pushed", task.id);
                }
            });
        }
    });
    *ids = shared.into_inner().expect("no panic");
}

/// Takes all that is left and compares it with what must be.
fn drain(client: &mut RespClient, ids: &mut Ids) {
    loop {
        let tasks = client.pop("q", 500);
        if tasks.is_empty() {
            break;
        }
        let taken: Vec<String> = tasks.into_iter().map(|task| task.id).collect();
        let ack = ["RQ.ACK", "q"].into_iter().chain(taken.iter().map(String::as_str));
        assert_eq!(client.command(&ack.collect::<Vec<_>>()).ids(), taken);
        for id in taken {
            assert!(ids.remove(&id), "{id} was pushed");
        }
    }
    assert!(ids.is_empty(), "{} tasks are lost", ids.len());
}

fn push_within_a_second(client: &mut RespClient) {
    let since = Instant::now();
    while let Value::Error(error) = client.say("RQ.PUSH later x") {
        assert!(since.elapsed() < Duration::from_secs(1), "there is room, and yet: {error}");
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

fn check(mount: &Path, filler: Filler) {
    let launch = serve(&mount.join("data"));
    let mut server = launch.start();
    let (mut client, mut ids) = (server.client(), Ids::new());
    let (bytes, before) = if filler == Filler::Pushes { (1000, 0) } else { (100, FINISHED + 3_000) };
    for _ in 0..before / 500 {
        ids.extend(push_many(&mut client, 500, bytes).0);
    }
    let files = fill(mount, filler);
    push_until_refused(&mut client, bytes, &mut ids);
    server.find_in_stderr(|line| line.contains("disk of the store is full").then_some(()));
    if filler == Filler::Pushes {
        server.find_in_stderr(|line| line.contains("is almost full").then_some(()));
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

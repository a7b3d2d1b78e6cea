//! `sureq check`, `--repair` and `sureq backup`, used like an operator would.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::Value;
use sureq_testkit::client::RespClient;
use sureq_testkit::history::{Findings, SharedHistory};
use sureq_testkit::load::{Load, scale, seeded};
use sureq_testkit::loop_image::Tmpfs;
use sureq_testkit::process::{Process, run};
use sureq_testkit::server_process::Launch;

use crate::failpoints::STEPS_OF_COPIES;
use crate::{SUREQ, scratch, serve};

const CANNOT: i32 = 1;
const DAMAGED: i32 = 65;

/// The time limit for a check, a repair or a backup.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command to its end.
fn sureq<A: AsRef<OsStr>>(args: &[A]) -> (i32, Process) {
    let mut process = Launch::new(SUREQ).args(args).spawn();
    (process.exit_code(PATIENCE), process)
}

fn check(dir: &Path) -> (i32, Value) {
    let (code, process) = sureq(&["check".as_ref(), "--json".as_ref(), dir.as_os_str()]);
    let report =
        serde_json::from_str(&process.stdout()).unwrap_or_else(|error| panic!("{error}:\n{process}"));
    (code, report)
}

/// All files of a directory: content, and time of the last change.
fn state_of(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let entries =
        fs::read_dir(dir).expect("it can be read").map(|entry| entry.expect("it can be read").path());
    entries
        .map(|path| {
            let changed =
                fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a file has a time");
            let content = fs::read(&path).expect("it can be read");
            (path, (content, changed))
        })
        .collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut segments: Vec<PathBuf> =
        state_of(dir).into_keys().filter(|path| path.extension() == Some(OsStr::new("seg"))).collect();
    segments.sort();
    segments
}

fn small_segments(dir: &Path) -> Launch {
    serve(dir).args(["--segment-bytes", "64KB"])
}

/// Changes some bytes of a file.
fn damage(path: &Path, at: usize, bytes: usize) {
    let mut content = fs::read(path).expect("it can be read");
    content[at..at + bytes].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(path, content).expect("it can be written");
}

#[test]
fn a_store_is_sound_after_kills_under_load_and_a_check_changes_nothing() {
    let (mut rng, dir, history) = (seeded(), scratch(), SharedHistory::default());
    let launch = small_segments(dir.path());
    for _ in 0..5 * scale() {
        let mut server = launch.start();
        let load = Load { pushes: 2_000 + rng.u64(..2_000), ..Load::default() };
        load.run(server.resp, &mut rng, &history, || {
            server.kill9();
        });
        let before = state_of(dir.path());
        let (code, report) = check(dir.path());
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(report["sound"], true);
        assert_eq!(state_of(dir.path()), before, "no byte and no time was changed");
    }
    let (code, words) = sureq(&["check".as_ref(), dir.path().as_os_str()]);
    assert_eq!(code, 0);
    for word in ["incarnation", "positions", "checkpoints", "ready", "even", "odd", "verdict      sound"] {
        assert!(words.stdout().contains(word), "{word}:\n{words}");
    }
    assert!(words.stderr().is_empty(), "no progress without a terminal: {words}");
    let server = launch.start();
    Load::default().drain(server.resp, &history);
    let history = history.into_inner();
    assert_eq!(history.findings(0), Findings::default(), "{history}");
}

#[test]
fn a_served_store_is_refused_with_advice() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    server.client().push("q", "x");
    for args in [vec!["check"], vec!["check", "--repair", "elsewhere"]] {
        let args: Vec<&OsStr> = args.into_iter().map(OsStr::new).chain([dir.path().as_os_str()]).collect();
        let (code, process) = sureq(&args);
        assert_eq!(code, CANNOT, "{process}");
        let output = process.stderr();
        assert!(
            output.contains(&format!("pid {}", server.id())) && output.contains("sureq backup"),
            "{process}"
        );
    }
    assert!(!Path::new("elsewhere").exists(), "nothing was created");
}

#[test]
fn a_store_on_a_file_system_that_cannot_be_written_to_is_checked_and_copied() {
    let tmpfs = Tmpfs::new("size=64m");
    let data = tmpfs.path().join("data");
    let mut server = small_segments(&data).start();
    for n in 0..200 {
        server.client().push("q", format!("payload {n}"));
    }
    server.kill9();
    run("mount", &["-o".as_ref(), "remount,ro".as_ref(), tmpfs.path().as_os_str()]);
    assert!(fs::write(data.join("x"), "x").is_err(), "it cannot be written to");
    let (code, report) = check(&data);
    assert_eq!((code, &report["tasks"]), (0, &Value::from(200)), "{report:#}");
    let elsewhere = scratch();
    for (name, args) in [("copy", vec!["backup"]), ("saved", vec!["check", "--repair"])] {
        let out = elsewhere.path().join(name);
        let mut words: Vec<&OsStr> = args.into_iter().map(OsStr::new).collect();
        words.extend(if name == "copy" {
            [data.as_os_str(), out.as_os_str()]
        } else {
            [out.as_os_str(), data.as_os_str()]
        });
        let (code, process) = sureq(&words);
        assert_eq!(code, 0, "{process}");
        let (code, report) = check(&out);
        assert_eq!((code, &report["tasks"]), (0, &Value::from(200)), "{report:#}");
    }
}

#[test]
fn an_unreadable_store_is_reported_and_nothing_is_created() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("empty")).expect("the directory is empty");
    fs::write(path("file"), "x").expect("the directory is empty");
    for (name, expected) in [("empty", "no store"), ("file", "cannot open"), ("absent", "cannot open")] {
        let (code, process) = sureq(&["check".as_ref(), path(name).as_os_str()]);
        assert_eq!(code, CANNOT, "{process}");
        assert!(process.stderr().contains(expected), "{process}");
        let (code, process) = sureq(&["backup".as_ref(), path(name).as_os_str(), path("out").as_os_str()]);
        assert_eq!(code, CANNOT, "{process}");
        assert!(process.stderr().contains(expected), "{process}");
    }
    assert!(fs::read_dir(path("empty")).expect("it exists").next().is_none());
    drop(serve(&path("data")).start());
    let full = path("full");
    fs::create_dir(&full).expect("it is new");
    fs::write(full.join("precious"), "x").expect("the directory is empty");
    for out in [&full, &path("data"), &path("data/inside")] {
        for args in [["backup", "", "@"], ["check", "--repair", "@"]] {
            let mut words: Vec<&OsStr> = Vec::new();
            for arg in args {
                words.push(match arg {
                    "@" => out.as_os_str(),
                    "" => continue,
                    word => OsStr::new(word),
                });
            }
            let data = path("data");
            words.insert(1, data.as_os_str());
            let (code, process) = sureq(&words);
            assert_eq!(code, CANNOT, "{process}");
        }
    }
    assert!(!path("data/inside").exists(), "nothing was created in the store");
    assert_eq!(fs::read_dir(&full).expect("it exists").count(), 1, "nothing was added to the directory");
}

#[test]
fn a_store_may_be_named_by_its_url() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).display().to_string();
    serve(Path::new(&path("data"))).start().client().push("q", "x");
    let home = |name: &str| format!("file:{}", path(name));
    for (args, at) in [
        (vec!["backup".to_owned(), home("data"), home("copy")], "copy"),
        (
            vec![
                "check".to_owned(),
                home("data"),
                "--repair".to_owned(),
                format!("file://{}", path("saved")),
            ],
            "saved",
        ),
    ] {
        let (code, process) = sureq(&args);
        assert_eq!(code, 0, "{process}");
        let (code, process) = sureq(&["check".to_owned(), home(at)]);
        assert_eq!(code, 0, "{process}");
        assert!(process.stdout().contains("1 task"), "{process}");
    }
}

#[test]
fn a_directory_locked_by_another_copy_is_refused() {
    let dir = scratch();
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    drop(serve(&data).start());
    fs::create_dir(&out).expect("it is new");
    let mut lock = fs::File::create(out.join("lock")).expect("the directory is empty");
    lock.write_all(b"4711").expect("the file can be written");
    lock.lock().expect("no other process holds the lock");
    let args = ["check".as_ref(), data.as_os_str(), "--repair".as_ref(), out.as_os_str()];
    let (code, process) = sureq(&args);
    assert_eq!(code, CANNOT, "{process}");
    let output = process.stderr();
    assert!(output.contains("pid 4711"), "{process}");
    assert!(output.contains("choose another directory") && !output.contains("sureq backup"), "{process}");
}

/// Opening an unfinished copy fails with an error that says so.
#[test]
fn an_unfinished_copy_is_not_a_store() {
    let dir = scratch();
    let data = dir.path().join("data");
    let mut server = serve(&data).args(["--segment-bytes", "64KB", "--durability", "none"]).start();
    let payload = "x".repeat(10_000);
    for _ in 0..100 {
        server.client().push("q", &payload);
    }
    // A killed server may have been writing, and a partial write cannot be distinguished from damage.
    server.terminate();
    assert_eq!(server.exit_code(PATIENCE), 0, "{}", *server);
    let (backup, repair) = (["backup", "@", "OUT"].as_slice(), ["check", "@", "--repair", "OUT"].as_slice());
    let [one_written, before_unmark] = STEPS_OF_COPIES;
    for (args, crash) in [
        (backup, one_written),
        (backup, before_unmark),
        (repair, "roll.before-seal:3"),
        (repair, before_unmark),
    ] {
        let out = dir.path().join("copy");
        let words = args.iter().map(|word| match *word {
            "@" => data.as_os_str(),
            "OUT" => out.as_os_str(),
            word => OsStr::new(word),
        });
        let words: Vec<&OsStr> = words.collect();
        let mut process = Launch::new(SUREQ).args(&words).env("SUREQ_FAILPOINT", crash).spawn();
        let signal = process.wait(PATIENCE).signal();
        assert_eq!(signal, Some(Signal::ABORT.as_raw()), "{crash} was not reached: {process}");
        let mark = "is an unfinished copy";
        let again = sureq(&words);
        let checked = sureq(&["check".as_ref(), out.as_os_str()]);
        let backed_up = sureq(&["backup".as_ref(), out.as_os_str(), dir.path().join("other").as_os_str()]);
        for (code, process) in [again, checked, backed_up] {
            assert_eq!(code, CANNOT, "{crash}: {process}");
            let output = process.stderr();
            assert!(output.contains(mark) && output.contains("remove the directory"), "{crash}: {process}");
        }
        let process = serve(&out).try_start().err().expect("it is not served");
        assert!(process.stderr().contains(mark), "{crash}: {process}");
        fs::remove_dir_all(&out).expect("it is ours");
        let (code, process) = sureq(&words);
        assert_eq!(code, 0, "{crash}: {process}");
        assert!(!out.join("sureq-unfinished").exists(), "the copy is finished");
        fs::remove_dir_all(&out).expect("it is ours");
    }
}

#[test]
fn every_lost_task_is_listed() {
    let dir = scratch();
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    let server = serve(&data).start();
    let mut client = server.client();
    let payloads: Vec<String> = (0..100).map(|n| format!("a payload with the number {n:03}")).collect();
    let ids: Vec<String> = payloads.iter().map(|payload| client.push("q", payload)).collect();
    drop(server);
    let segment = segments(&data).remove(0);
    let mut content = fs::read(&segment).expect("it can be read");
    for payload in &payloads[..50] {
        let is_it = |window: &[u8]| window == payload.as_bytes();
        let at = content.windows(payload.len()).position(is_it).expect("it is in the log as it is");
        content[at] ^= 1;
    }
    fs::write(&segment, content).expect("it can be written");
    let (code, process) = sureq(&["check".as_ref(), data.as_os_str(), "--repair".as_ref(), out.as_os_str()]);
    assert_eq!(code, DAMAGED, "{process}");
    let output = process.stdout();
    let unlisted: Vec<&String> =
        ids[..50].iter().filter(|id| !output.contains(&format!("  {id} of q"))).collect();
    assert!(unlisted.is_empty(), "{unlisted:?} are not listed:\n{output}");
    assert!(!output.contains("lists all"), "{output}");
}

/// A store whose finished and unfinished tasks are known.
struct Known {
    live: BTreeMap<String, Vec<u8>>,
    finished: BTreeSet<String>,
}

/// Fills a store over many small segments, with checkpoints, and kills its server.
fn fill(dir: &Path) -> Known {
    let mut known = Known { live: BTreeMap::new(), finished: BTreeSet::new() };
    let mut server = small_segments(dir).start();
    let mut client = server.client();
    for n in 0..1500 {
        let payload = format!("payload {n} {}", "x".repeat(n % 300)).into_bytes();
        let id = client.push("q", &payload);
        known.live.insert(id, payload);
        if n % 3 == 2 {
            for task in client.pop("q", 2) {
                assert!(client.ack("q", &task.id));
                known.live.remove(&task.id);
                known.finished.insert(task.id);
            }
        }
    }
    client.pop("q", 5);
    server.kill9();
    known
}

/// Takes all tasks out of a store, including leased ones.
fn drain(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let server = serve(dir).start();
    let mut client = server.client();
    let mut tasks = BTreeMap::new();
    for queue in client.command(&["KEYS", "*"]).ids() {
        loop {
            let popped = client.pop(&queue, 1000);
            if popped.is_empty() {
                break;
            }
            tasks.extend(popped.into_iter().map(|task| (task.id, task.payload)));
        }
        for task in client.say(&format!("RQ.RECOVER {queue} 100000 0")).list() {
            let mut fields = task.list().into_iter();
            let mut next = || fields.next().expect("a recovered task has two fields");
            tasks.insert(next().text(), next().bytes());
        }
    }
    tasks
}

/// Damages a copy of a store, repairs it, and compares the result with the known tasks.
fn repair(data: &Path, known: &Known, name: &str, harm: impl FnOnce(&Path)) -> Value {
    let dir = scratch();
    let (bad, out) = (dir.path().join("bad"), dir.path().join("out"));
    run("cp", &["-a".as_ref(), data.as_os_str(), bad.as_os_str()]);
    harm(&bad);
    let before = state_of(&bad);
    let (code, report) = check(&bad);
    assert_eq!(code, DAMAGED, "{name}: {report:#}");
    let finding = &report["findings"][0];
    for field in ["file", "what", "meaning", "advice"] {
        assert!(finding[field].as_str().is_some_and(|text| !text.is_empty()), "{name}: {finding:#}");
    }
    let args = ["check", "--json", "--repair"].map(OsStr::new);
    let (code, process) =
        sureq(&args.into_iter().chain([out.as_os_str(), bad.as_os_str()]).collect::<Vec<_>>());
    let repaired: Value =
        serde_json::from_str(&process.stdout()).unwrap_or_else(|error| panic!("{name}: {error}:\n{process}"));
    assert_eq!(code, if repaired["complete"] == true { 0 } else { DAMAGED }, "{name}: {process}");
    assert_eq!(state_of(&bad), before, "{name}: the damaged store stays as it is");
    let (code, report) = check(&out);
    assert_eq!(code, 0, "{name}: {report:#}");

    let ids = |field: &str| -> BTreeSet<String> {
        let list = repaired[field].as_array().expect("a list");
        list.iter().map(|task| task["id"].as_str().expect("an id").to_owned()).collect()
    };
    let (lost, doubtful) = (ids("lost"), ids("in_doubt"));
    let saved = drain(&out);
    for (id, payload) in &saved {
        match known.live.get(id) {
            Some(pushed) => assert_eq!(payload, pushed, "{name}: {id}"),
            None => assert!(doubtful.contains(id), "{name}: {id} was restored"),
        }
    }
    let gaps = !repaired["gaps"].as_array().expect("a list").is_empty();
    let missing: Vec<&String> =
        known.live.keys().filter(|id| !saved.contains_key(*id) && !lost.contains(*id)).collect();
    assert!(missing.is_empty() || gaps, "{name}: neither saved nor listed: {missing:?}");
    repaired
}

#[test]
fn readable_tasks_are_saved_and_lost_ones_listed() {
    let dir = scratch();
    let data = dir.path().join("data");
    let known = fill(&data);
    let (code, sound) = check(&data);
    assert_eq!((code, &sound["tasks"]), (0, &Value::from(known.live.len())), "{sound:#}");
    let parts = segments(&data);
    assert!(parts.len() > 2, "{parts:?}");
    let middle = parts[parts.len() / 2].file_name().expect("a name").to_owned();
    let live = |dir: &Path| -> Vec<PathBuf> {
        let (_, report) = check(dir);
        let list = report["segments"].as_array().expect("a list").clone();
        let has_live = |segment: &&Value| segment["live_tasks"].as_u64() > Some(0);
        list.iter()
            .filter(has_live)
            .map(|segment| dir.join(segment["file"].as_str().expect("a name")))
            .collect()
    };

    repair(&data, &known, "a damaged segment in the middle", |bad| damage(&bad.join(&middle), 20_000, 300));
    let payload = repair(&data, &known, "a damaged payload", |bad| {
        let (segment, payload) =
            (live(bad).pop().expect("there are tasks"), b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        let content = fs::read(&segment).expect("it can be read");
        let at = content.windows(payload.len()).rposition(|window| window == payload).expect("a payload");
        damage(&segment, at + 7, 1);
    });
    assert!(payload["gaps"].as_array().is_some_and(Vec::is_empty), "{payload:#}");
    let deleted = repair(&data, &known, "a deleted segment", |bad| {
        fs::remove_file(live(bad).swap_remove(0)).expect("it exists");
    });
    assert!(!deleted["lost"].as_array().expect("a list").is_empty(), "{deleted:#}");
    let checkpoints: Vec<String> = sound["checkpoints"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| file["file"].as_str().expect("a name").to_owned())
        .collect();
    assert!(checkpoints.len() >= 2, "{checkpoints:?}");
    for (what, at) in [("a blob of each checkpoint", 200), ("the header of each checkpoint", 20)] {
        repair(&data, &known, what, |bad| checkpoints.iter().for_each(|name| damage(&bad.join(name), at, 4)));
    }
    repair(&data, &known, "the store file", |bad| fs::remove_file(bad.join("store")).expect("it exists"));
}

/// The tasks of the clients, according to their replies.
#[derive(Default)]
struct Account {
    confirmed: BTreeSet<String>,
    /// Tasks for which an ack was sent, with or without a reply.
    asked: BTreeSet<String>,
}

/// Sets the flag on drop, so that the other threads end with a test.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pushes, pops and finishes until it is over, and leaves one of many tasks unfinished.
fn work(mut client: RespClient, account: &Mutex<Account>, is_over: &AtomicBool, seed: usize) {
    let account = || account.lock().expect("no thread panics with the lock");
    for n in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let payload = "x".repeat(2000 + (n * 37 + seed) % 6000);
        let argv = ["RQ.PUSH", "q", &payload, &payload, &payload, &payload];
        let ids = client.command(&argv).ids();
        account().confirmed.extend(ids);
        let mut tasks = client.pop("q", 4);
        tasks.truncate(if n % 50 == 0 { 3 } else { 4 });
        account().asked.extend(tasks.iter().map(|task| task.id.clone()));
        let argv = ["RQ.ACK", "q"].into_iter().chain(tasks.iter().map(|task| &*task.id));
        if !tasks.is_empty() {
            client.command(&argv.collect::<Vec<_>>());
        }
    }
}

#[test]
fn backups_under_load_are_sound_and_have_all_confirmed_tasks() {
    let dir = scratch();
    let data = dir.path().join("data");
    let server = small_segments(&data).start();
    let (account, is_over) = (Mutex::new(Account::default()), AtomicBool::new(false));
    let mut numbers = BTreeSet::new();
    thread::scope(|scope| {
        let over = Over(&is_over);
        for seed in 0..4 {
            let (client, account, is_over) = (server.client(), &account, &is_over);
            scope.spawn(move || work(client, account, is_over, seed));
        }
        for n in 0..20 * scale() {
            let out = dir.path().join(format!("copy-{n}"));
            let before = account.lock().expect("no thread panics with the lock").confirmed.clone();
            let (code, process) = sureq(&["backup".as_ref(), data.as_os_str(), out.as_os_str()]);
            assert_eq!(code, 0, "backup {n}: {process}");
            assert!(process.stdout().contains("position "), "{process}");
            let (code, report) = check(&out);
            assert_eq!(code, 0, "backup {n}: {report:#}");
            let number =
                segments(&out).pop().and_then(|path| path.file_stem()?.to_str()?.parse::<u64>().ok());
            let number = number.expect("a copy has a segment");
            numbers.insert(number);
            let there = drain(&out);
            let asked = account.lock().expect("no thread panics with the lock").asked.clone();
            let lost: Vec<&String> =
                before.iter().filter(|id| !there.contains_key(*id) && !asked.contains(*id)).collect();
            assert!(lost.is_empty(), "backup {n} lacks {lost:?}");
            fs::remove_dir_all(out).expect("it is ours");
        }
        drop(over);
    });
    assert!(numbers.len() > 10, "{numbers:?}: too few segments to interfere with the backup");
    drop(server);
    let (code, report) = check(&data);
    assert_eq!(code, 0, "{report:#}");
}

#[test]
fn copies_without_a_check_and_in_json_report_their_result() {
    let dir = scratch();
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    let server = serve(&data).start();
    server.client().push("q", "x");
    let (code, process) =
        sureq(&["backup".as_ref(), "--no-verify".as_ref(), data.as_os_str(), out.as_os_str()]);
    assert_eq!(code, 0, "{process}");
    assert!(process.stdout().contains("not checked") && !process.stdout().contains("tasks"), "{process}");
    let again = dir.path().join("again");
    let (code, process) = sureq(&["backup".as_ref(), "--json".as_ref(), data.as_os_str(), again.as_os_str()]);
    let copied: Value =
        serde_json::from_str(&process.stdout()).unwrap_or_else(|error| panic!("{error}:\n{process}"));
    assert_eq!((code, &copied["store"]["tasks"]), (0, &Value::from(1)), "{copied:#}");
    assert_eq!(drain(&out).len(), 1);
    assert_eq!(drain(&again).len(), 1);
}

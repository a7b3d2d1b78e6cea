//! Commands mean the same in every home: tasks are neither dropped, duplicated nor miscounted silently, and the exit
//! code reports each failure.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use sureq_testkit::process::{PATIENCE, Process};
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::{Launch, Server};

use crate::commands::{check_refused, command, fed, in_dir, lines, on_server, sureq};
use crate::memory::in_memory;
use crate::users::TestUsers;
use crate::{SUREQ, scratch, serve};
use rustix::process::Signal;

/// One home of each kind.
struct Homes {
    urls: Vec<String>,
    _server: Server,
    _redis: RedisServer,
    _dir: tempfile::TempDir,
}

impl Homes {
    fn start() -> Self {
        let (dir, redis) = (scratch(), RedisServer::start());
        let server = serve(&dir.path().join("data")).start();
        let urls = vec![in_dir(dir.path()), on_server(server.resp), redis.url()];
        Self { urls, _server: server, _redis: redis, _dir: dir }
    }

    /// With a queue called `q` in each home.
    fn with_queue() -> Self {
        let homes = Self::start();
        for home in &homes.urls {
            lines(home, &["push", "q", "a"]);
        }
        homes
    }
}

/// A Redis in the layout of another program, used directly and through a server.
struct Layout {
    urls: Vec<String>,
    _server: Server,
    _redis: RedisServer,
}

impl Layout {
    fn start(name: &str) -> Self {
        let redis = RedisServer::start();
        let url = format!("{}?layout={name}", redis.url());
        let server = Launch::new(SUREQ)
            .args(["serve", "--home", &url, "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0"])
            .start();
        Self { urls: vec![url, on_server(server.resp)], _server: server, _redis: redis }
    }
}

fn json_lines(home: &str, words: &[&str]) -> Vec<Value> {
    let lines = lines(home, &[words, &["--json"]].concat());
    lines.iter().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

fn count(home: &str, queue: &str, state: &str) -> Value {
    json_lines(home, &["stats", queue])[0][state].clone()
}

#[test]
fn a_name_is_for_one_task() {
    let homes = Homes::with_queue();
    for home in &homes.urls {
        check_refused(
            home,
            &["push", "q", "x", "y", "z", "--name", "same"],
            2,
            "--name is for one task, but 3 are",
        );
        check_refused(home, &["push", "q", "x", "--file", "/dev/null", "--name", "same"], 2, "2 are given");
        assert_eq!(count(home, "q", "ready"), 1, "{home}: nothing was pushed");
    }
}

#[test]
fn invalid_arguments_create_no_store() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    check_refused(home, &["push", "q", "x", "y", "--name", "n"], 2, "--name is for one task");
    check_refused(
        home,
        &["push", "q", "--file", "-", "--file", "-"],
        2,
        "standard input can be read only once",
    );
    check_refused(home, &["push", "q", "--file", "/nonexistent"], 1, "cannot read /nonexistent");
    assert_eq!(fed(home, &["push", "q", "--name", "n"], b"x\n").code, 2);
    assert!(!dir.path().join("store").exists());
}

#[test]
fn existing_tasks_are_not_counted_as_pushed() {
    let homes = Homes::start();
    for home in &homes.urls {
        let said = fed(home, &["push", "u", "--unique"], b"a\na\nb\na\n");
        assert_eq!((said.code, said.out.as_str()), (0, "2 tasks pushed, 2 already existed\n"), "{home}");
        let said = fed(home, &["push", "u", "--unique", "--json"], b"a\nc\n");
        assert_eq!(said.out, "{\"queue\":\"u\",\"pushed\":1,\"already_there\":1}\n", "{home}");
        let said = sureq(home, &["push", "u", "a", "d", "--unique"]);
        assert_eq!((said.code, said.out.matches("already exists").count()), (0, 1), "{home}: {}", said.out);
        assert_eq!(count(home, "u", "ready"), 4, "{home}");
    }
}

#[test]
fn arguments_that_are_pushed_one_by_one_are_counted_when_one_is_refused() {
    let homes = Homes::start();
    for home in &homes.urls {
        lines(home, &["push", "few", "0"]);
        lines(home, &["config", "few", "max-length=2"]);
        let said = sureq(home, &["push", "few", "1", "2", "--tries", "2"]);
        assert_eq!((said.code, said.out.lines().count()), (75, 1), "{home}: {}", said.out);
        assert!(said.err.contains("1 task confirmed; then the queue is full"), "{home}: {}", said.err);
    }
}

/// A push that is refused for lack of room may succeed later: its exit code differs from that of a permanent refusal.
#[test]
fn a_full_queue_or_home_exits_with_try_again() {
    let homes = Homes::start();
    for home in &homes.urls {
        lines(home, &["push", "few", "0"]);
        lines(home, &["config", "few", "max-length=1"]);
        check_refused(home, &["push", "few", "1"], 75, "the queue is full");
        check_refused(home, &["push", "few", "1", "--unique"], 75, "the queue is full");
        let said = fed(home, &["push", "few"], b"one\ntwo\n");
        assert_eq!(said.code, 75, "{home}: {}", said.err);
    }
    let server = in_memory().args(["--memory", "16MB"]).start();
    let home = &on_server(server.resp);
    let large = "x".repeat(100_000);
    let mut said = sureq(home, &["push", "q", &large]);
    for _ in 0..300 {
        if said.code != 0 {
            break;
        }
        said = sureq(home, &["push", "q", &large]);
    }
    assert_eq!(said.code, 75, "{}", said.err);
}

/// The layouts of other programs contain only the number of tasks: unknown counts are not zero.
#[test]
fn unknown_counts_of_other_programs_are_not_zero() {
    for name in ["redis-queue", "work-queue", "worqr"] {
        let layout = Layout::start(name);
        for home in &layout.urls {
            lines(home, &["push", "q", "a", "b"]);
            let shown = lines(home, &["stats", "q"]);
            let names: Vec<&str> = shown.iter().filter_map(|line| line.split_whitespace().next()).collect();
            assert_eq!(names, ["queue", "ready", "leased"], "{home}");
            let stats = &json_lines(home, &["stats", "q"])[0];
            assert_eq!((&stats["ready"], &stats["leased"]), (&2.into(), &0.into()), "{home}");
            for uncounted in [
                "delayed",
                "dead",
                "waiting_bytes",
                "oldest_ms",
                "pushed",
                "finished",
                "pushed_per_second",
                "finished_per_second",
                "workers",
                "settings",
            ] {
                assert!(stats[uncounted].is_null(), "{home}: {uncounted} is {}", stats[uncounted]);
            }
            lines(home, &["purge", "q", "--drop", "--yes"]);
        }
    }
}

#[test]
fn a_pop_without_a_lease_prints_a_handle_that_acks_the_task() {
    let homes = Homes::start();
    let layouts = [Layout::start("redis-queue"), Layout::start("work-queue")];
    for home in layouts.iter().flat_map(|layout| &layout.urls).chain(&homes.urls) {
        lines(home, &["push", "q", "one", "two", "three"]);
        let popped = &json_lines(home, &["pop", "q", "--no-lease"])[0];
        assert_ne!(popped["delivery"], 0, "{home}: an unknown delivery number is not zero");
        let receipt = popped["receipt"].as_str().expect("a receipt");
        assert_eq!(lines(home, &["ack", "q", receipt]), [format!("{receipt} finished")], "{home}");
        let taken = sureq(home, &["pop", "q", "--no-lease", "--ack", "--raw", "-n", "2"]);
        assert_eq!((taken.code, taken.out.as_str(), taken.err.as_str()), (0, "two\nthree\n", ""), "{home}");
        assert_eq!(count(home, "q", "leased"), 0, "{home}");
    }
}

#[test]
fn a_count_of_zero_tasks_is_refused() {
    let homes = Homes::with_queue();
    let layout = Layout::start("work-queue");
    for home in homes.urls.iter().chain(&layout.urls) {
        check_refused(home, &["inspect", "q", "-n", "0"], 2, "0 is not in 1..");
        check_refused(home, &["pop", "q", "-n", "0"], 2, "0 is not in 1..");
        check_refused(home, &["work", "q", "--timeout", "0s", "--", "true"], 2, "write a time longer than 0");
        check_refused(home, &["work", "q", "p", "q", "--", "true"], 2, "queue q is given twice");
    }
}

#[test]
fn more_tasks_than_fit_into_one_reply_are_listed() {
    let homes = Homes::start();
    let dir = scratch();
    let large = dir.path().join("large");
    // Two of these payloads exceed the size of one reply.
    std::fs::write(&large, vec![b'x'; 33 << 20]).expect("the file can be written");
    let file = large.to_str().expect("a path");
    for home in &homes.urls {
        for _ in 0..2 {
            lines(home, &["push", "q", "--file", file]);
        }
        assert_eq!(lines(home, &["inspect", "q", "--start", "-3"]).len(), 3, "{home}: rows and a head");
    }
}

#[test]
fn memory_that_ends_with_the_command_takes_no_tasks() {
    for words in [
        &["push", "q", "x"][..],
        &["pop", "q"],
        &["queues"],
        &["config", "q", "tries=1"],
        &["work", "q", "--", "true"],
    ] {
        check_refused("mem:", words, 2, "cannot open mem: it would end with this command");
    }
    assert_eq!(lines("mem:", &["bench", "--tasks", "20", "--rounds", "1", "--json"]).len(), 4);
}

#[test]
fn incarnations_are_text_in_json() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    lines(home, &["push", "q", "x"]);
    let store = dir.path().join("store");
    let report: Value =
        serde_json::from_str(&lines(home, &["check", "--json", store.to_str().expect("a path")]).concat())
            .expect("JSON");
    assert!(report["incarnation"].as_str().is_some_and(|n| n.parse::<u64>().is_ok()), "{report}");
    let homes = Homes::start();
    for home in &homes.urls[1..] {
        let (worker, id) = working(home);
        let workers = json_lines(home, &["workers"]);
        assert_eq!(workers[0]["name"], "w", "{workers:?}");
        assert!(workers[0]["incarnation"].as_str().is_some_and(|n| n.parse::<u64>().is_ok()), "{workers:?}");
        let explained = &json_lines(home, &["explain", "q", &id])[0];
        assert_eq!(explained["incarnation"], workers[0]["incarnation"], "{home}");
        assert_eq!((&explained["worker"], &explained["cancelled"]), (&"w".into(), &false.into()), "{home}");
        check_refused(home, &["workers", "--yes"], 2, "--fail");
        // The program ends with its worker.
        worker.signal(Signal::TERM);
        assert!(worker.ends_within(PATIENCE), "{home}: {worker}");
    }
}

/// Starts a worker called w that runs a program for a task of q; returns it and the task's id.
fn working(home: &str) -> (Process, String) {
    let id = lines(home, &["push", "q", "a"]).concat();
    let words =
        ["work", "q", "--name", "w", "--grace", "1ms", "--", "sh", "-c", "echo begun; exec sleep 1000"];
    let worker = Process::start(&mut command(home, &words));
    worker.find_in_stdout(|text| text.contains("begun").then_some(()));
    (worker, id)
}

#[test]
fn a_payload_beyond_the_limit_is_refused_by_its_limit() {
    let homes = Homes::with_queue();
    let dir = scratch();
    let (large, huge) = (dir.path().join("large"), dir.path().join("huge"));
    std::fs::write(&large, vec![b'x'; 50 << 20]).expect("the file can be written");
    std::fs::write(&huge, vec![b'x'; (64 << 20) + 1]).expect("the file can be written");
    let (large, huge) = (large.to_str().expect("a path"), huge.to_str().expect("a path"));
    for home in &homes.urls {
        check_refused(
            home,
            &["push", "q", "--file", huge],
            1,
            "the payload is too large: at most 67108864 bytes",
        );
        check_refused(home, &["push", "q", "--file", huge, "--tries", "1"], 1, "the payload is too large");
        assert_eq!(count(home, "q", "ready"), 1, "{home}");
    }
    // Payloads of a valid size can together be too large for one command.
    let three = ["push", "q", "--file", large, "--file", large, "--file", large];
    check_refused(&homes.urls[1], &three, 1, "the sum of the payloads is too large: at most 134217728 bytes");
    // A line without an end is not read completely.
    let line = vec![b'x'; (64 << 20) + 1];
    let said = fed(&homes.urls[1], &["push", "q"], &line);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("0 tasks confirmed; then the payload is too large"), "{}", said.err);
}

#[test]
fn only_states_that_can_be_purged_are_offered() {
    let homes = Homes::with_queue();
    for home in &homes.urls {
        check_refused(
            home,
            &["purge", "q", "--state", "leased", "--yes"],
            2,
            "[possible values: ready, delayed, dead]",
        );
        check_refused(home, &["purge", "q", "--state", "dead", "--drop", "--yes"], 2, "cannot be used with");
        lines(home, &["pop", "q"]);
        assert_eq!(sureq(home, &["purge", "q", "--yes"]).code, 4, "{home}: a leased task stays");
        lines(home, &["config", "q", "tries=7"]);
        check_refused(
            home,
            &["purge", "q", "--drop"],
            2,
            "This permanently removes the queue with 1 task of q: confirm it with --yes",
        );
        assert_eq!(lines(home, &["purge", "q", "--drop", "--yes"]), ["q is removed"], "{home}");
        assert_eq!(json_lines(home, &["config", "q"])[0]["tries"], "0", "{home}");
        assert_eq!(sureq(home, &["purge", "q", "--drop", "--yes"]).code, 4, "{home}");
    }
}

#[test]
fn keys_of_other_programs_are_emptied_by_removing_them() {
    for name in ["redis-queue", "work-queue"] {
        let layout = Layout::start(name);
        for home in &layout.urls {
            lines(home, &["push", "q", "a", "b"]);
            check_refused(home, &["purge", "q", "--yes"], 1, "`sureq purge --drop`");
            assert_eq!(lines(home, &["purge", "q", "--drop", "--yes"]), ["q is removed"], "{home}");
            assert_eq!(lines(home, &["queues"]), ["no queue has tasks"], "{home}");
        }
    }
}

#[test]
fn a_pop_that_a_layout_does_not_support_is_refused_with_advice() {
    for (name, advice) in [("redis-queue", "use --no-lease"), ("worqr", "use `sureq work`")] {
        let layout = Layout::start(name);
        for home in &layout.urls {
            lines(home, &["push", "q", "a"]);
            check_refused(home, &["pop", "q"], 1, advice);
            check_refused(home, &["pop", "q", "--lease", "5s", "--ack"], 1, advice);
            if name == "worqr" {
                check_refused(home, &["pop", "q", "--no-lease"], 1, advice);
            }
        }
    }
}

#[test]
fn a_list_of_queues_shows_which_are_paused() {
    let homes = Homes::with_queue();
    for home in &homes.urls {
        lines(home, &["push", "r", "b"]);
        assert!(!lines(home, &["queues"])[0].contains("paused"), "{home}");
        lines(home, &["pause", "q"]);
        let table = lines(home, &["queues"]);
        assert!(table[0].ends_with("dead  paused") && table[1].ends_with(" ago"), "{home}: {table:?}");
        assert!(table[2].ends_with('0'), "{home}: {table:?}");
        let rows = json_lines(home, &["queues"]);
        assert!(rows[0]["paused_at"].is_u64() && rows[1]["paused_at"].is_null(), "{home}: {rows:?}");
    }
    let layout = Layout::start("work-queue");
    lines(&layout.urls[0], &["push", "q", "a"]);
    assert!(json_lines(&layout.urls[0], &["queues"])[0]["paused_at"].is_null());
}

#[test]
fn explain_prints_dates_and_all_fields() {
    let homes = Homes::start();
    for home in &homes.urls {
        let later = lines(home, &["push", "d", "x", "--at", "2090-01-01T00:00:00Z"]).concat();
        let words = lines(home, &["explain", "d", &later]).concat();
        assert!(words.starts_with("delayed until 2090-01-01T00:00:00Z, "), "{home}: {words}");
        let fields = &json_lines(home, &["explain", "d", &later])[0];
        assert_eq!(
            (&fields["due"], &fields["state"]),
            (&3_786_912_000_000_u64.into(), &"delayed".into()),
            "{home}"
        );
        assert!(fields["due_in_ms"].as_u64() > Some(1_000_000), "{home}: {fields}");
        let ids = lines(home, &["push", "q", "a", "b"]);
        lines(home, &["pause", "q"]);
        let words = lines(home, &["explain", "q", &ids[1]]).concat();
        assert!(
            words.starts_with("queue paused ") && words.ends_with(" ago; ready, 1 ahead"),
            "{home}: {words}"
        );
        let fields = &json_lines(home, &["explain", "q", &ids[1]])[0];
        assert!(fields["ahead"] == 1 && fields["paused_at"].is_u64(), "{home}: {fields}");
        lines(home, &["resume", "q"]);
        lines(home, &["pop", "q"]);
        let words = lines(home, &["explain", "q", &ids[0]]).concat();
        assert!(words.contains(" ago, until 2") && words.ends_with(" s), delivery 1"), "{home}: {words}");
        let fields = &json_lines(home, &["explain", "q", &ids[0]])[0];
        let time = |name: &str| fields[name].as_u64().expect("a time");
        let lease = time("lease_ends") - time("taken_at");
        // On Redis, deadlines count from the end of the current millisecond.
        let longest = if home.starts_with("redis") { 60_001 } else { 60_000 };
        assert!((60_000..=longest).contains(&lease), "{home}: {fields}");
        lines(home, &["return", "q", &ids[0], "--failed", "no\u{1b}way", "--dead"]);
        let words = lines(home, &["explain", "q", &ids[0]]).concat();
        assert!(words.contains("dead: ") && words.ends_with(r"last reason: no\x1bway"), "{home}: {words}");
        assert!(json_lines(home, &["explain", "q", &ids[0]])[0]["died_at"].is_u64(), "{home}");
    }
}

#[test]
fn partial_success_exits_with_an_error() {
    let homes = Homes::start();
    for home in &homes.urls {
        let ids = lines(home, &["push", "q", "a", "b", "c", "d"]);
        let said = sureq(home, &["cancel", "q", &ids[3], &ids[3], "1-1"]);
        assert_eq!((said.code, said.out.as_str()), (4, "1 of 2 tasks cancelled\n"), "{home}");
        let receipts = json_lines(home, &["pop", "q", "-n", "3"]);
        let receipt = |n: usize| receipts[n]["receipt"].as_str().expect("a receipt");
        let said = sureq(home, &["ack", "q", receipt(0), "1-1"]);
        assert_eq!((said.code, said.out.lines().count()), (4, 2), "{home}: {}", said.out);
        assert!(said.out.contains("1-1 not finished"), "{home}: {}", said.out);
        assert_eq!(lines(home, &["ack", "q", receipt(1)]).len(), 1, "{home}");
        lines(home, &["return", "q", receipt(2), "--failed", "x", "--dead"]);
        let said = sureq(home, &["revive", "q", &ids[2], "1-1"]);
        assert_eq!((said.code, said.out.as_str()), (4, "1 of 2 tasks revived\n"), "{home}");
        assert_eq!(lines(home, &["cancel", "q", &ids[2]]), ["1 task cancelled"], "{home}");
        let said = sureq(home, &["cancel", "q", "--payload", "none", "--yes"]);
        assert_eq!((said.code, said.out.as_str()), (4, "0 tasks cancelled\n"), "{home}");
    }
}

#[test]
fn leases_are_extended_and_tasks_buried_and_deleted() {
    let homes = Homes::start();
    for home in &homes.urls {
        let ids = lines(home, &["push", "q", "a", "b", "c"]);
        let receipt = json_lines(home, &["pop", "q"])[0]["receipt"].as_str().expect("a receipt").to_owned();
        assert_eq!(lines(home, &["extend", "q", &receipt, "1h"]), [format!("{receipt} extended")], "{home}");
        let fields = &json_lines(home, &["explain", "q", &ids[0]])[0];
        let time = |name: &str| fields[name].as_u64().expect("a time");
        assert!(time("lease_ends") - time("taken_at") >= 3_600_000, "{home}: {fields}");
        // A leased task is buried too: its holder has lost it.
        assert_eq!(lines(home, &["bury", "q", &ids[0], &ids[1]]), ["2 tasks buried"], "{home}");
        let said = sureq(home, &["extend", "q", &receipt, "1m"]);
        assert_eq!((said.code, said.out.contains("not extended")), (4, true), "{home}: {}", said.out);
        let outcome = &sureq(home, &["extend", "q", &receipt, "1m", "--json"]).out;
        assert!(outcome.contains(r#""outcome":"not extended""#), "{home}: {outcome}");
        assert_eq!(json_lines(home, &["inspect", "q", "--state", "dead"]).len(), 2, "{home}");
        let said = sureq(home, &["delete", "q", &ids[0], &ids[2], "1-1"]);
        assert_eq!((said.code, said.out.as_str()), (4, "2 of 3 tasks deleted\n"), "{home}");
        let said = sureq(home, &["bury", "q", "1-1"]);
        assert_eq!((said.code, said.out.as_str()), (4, "0 tasks buried\n"), "{home}");
        let left = json_lines(home, &["inspect", "q", "--state", "dead"]);
        assert_eq!((left.len(), left[0]["id"].as_str()), (1, Some(&*ids[1])), "{home}");
    }
}

#[test]
fn refused_credentials_exit_with_no_permission() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "root").start();
    let redis = RedisServer::start_with("redis-server".as_ref(), &["--requirepass", "secret"]);
    check_refused(&on_server(server.resp), &["queues"], 77, "NOAUTH");
    check_refused(&format!("sureq://root:wrong@{}", server.resp), &["queues"], 77, "WRONGPASS");
    check_refused(&redis.url(), &["queues"], 77, "NOAUTH");
    check_refused(&format!("{}?pass=wrong", redis.url()), &["push", "q", "x"], 77, "WRONGPASS");
    let home = format!("{}?pass=secret", redis.url());
    assert_eq!(lines(&home, &["queues"]), ["no queue has tasks"]);
    // A user who can log in and has only read permissions.
    let mut root =
        redis::Client::open(format!("{}?pass=secret", redis.url())).and_then(|root| root.get_connection());
    let root = root.as_mut().expect("it listens");
    let reader = ["SETUSER", "reader", "on", ">open", "~*", "&*", "+@all", "-@scripting"];
    redis::cmd("ACL").arg(&reader).exec(root).expect("it is made");
    let reader = format!("{}?user=reader&pass=open", redis.url());
    check_refused(&reader, &["push", "q", "x"], 77, "this user has no permissions");
}

#[test]
fn an_idle_worker_prints_the_queues_that_it_waits_for() {
    let homes = Homes::start();
    for home in &homes.urls[1..] {
        lines(home, &["push", "q", "x", "--delay", "1h"]);
        lines(home, &["push", "p", "y", "z"]);
        lines(home, &["pause", "p"]);
        let words = ["work", "q", "p", "--until-empty", "--", "true"];
        let mut worker = Process::start(&mut command(home, &words));
        let logged =
            |words: &'static str| worker.find_in_stderr(|line| line.contains(words).then(|| line.to_owned()));
        let waiting = logged("waiting for q: ");
        assert!(waiting.contains("1 delayed, the next due in 59 min"), "{home}: {waiting}");
        let waiting = logged("waiting for p: ");
        assert!(waiting.contains("2 ready, but paused "), "{home}: {waiting}");
        worker.signal(Signal::TERM);
        assert_eq!(worker.exit_code(PATIENCE), 0, "{home}: {worker}");
    }
}

#[test]
fn a_failing_program_is_not_retried_at_once_in_homes_without_delays() {
    let dir = scratch();
    for name in ["redis-queue", "work-queue", "worqr"] {
        let layout = Layout::start(name);
        for (home, code) in layout.urls.iter().zip(["3", "75"]) {
            lines(home, &["push", "q", "a"]);
            let marker = dir.path().join(format!("{name}-{code}"));
            let marker = marker.to_str().expect("a path");
            let script = r#"test -e "$0" && exit 0; touch "$0"; exit $1"#;
            let began = Instant::now();
            lines(home, &["work", "q", "--until-empty", "--", "sh", "-c", script, marker, code]);
            assert!(began.elapsed() >= Duration::from_secs(1), "{home}, exit code {code}");
        }
    }
}

#[test]
fn an_empty_name_is_printed_as_quotes() {
    let homes = Homes::start();
    for home in &homes.urls {
        lines(home, &["push", "", "a"]);
        assert!(lines(home, &["queues"])[1].starts_with(r#"""  "#), "{home}");
        assert_eq!(lines(home, &["pause", ""]), [r#""" is paused"#], "{home}");
    }
}

#[test]
fn an_existing_task_without_an_id_is_reported() {
    let layout = Layout::start("worqr");
    for (home, first) in layout.urls.iter().zip(["pushed", "already exists"]) {
        assert_eq!(lines(home, &["push", "q", "a", "--unique"]), [first]);
        assert_eq!(lines(home, &["push", "q", "a", "--unique"]), ["already exists"]);
    }
}

/// A pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("there are pipes");
    drop(reader);
    writer.into()
}

#[test]
fn popped_tasks_that_cannot_be_printed_exit_with_an_error() {
    let homes = Homes::start();
    for home in &homes.urls {
        lines(home, &["push", "q", "a", "b"]);
        for words in [&["pop", "q"][..], &["pop", "q", "--ack", "--raw"]] {
            let output =
                command(home, words).stdin(Stdio::null()).stdout(unread()).output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{home}: {words:?}: {said}");
            assert!(said.contains("cannot print popped tasks to standard output"), "{home}: {said}");
        }
    }
}

#[test]
fn workers_are_not_counted_in_homes_without_workers() {
    let layout = Layout::start("work-queue");
    for home in &layout.urls {
        assert!(json_lines(home, &["stats"])[0]["workers"].is_null(), "{home}");
        assert!(!lines(home, &["stats"])[0].contains("worker"), "{home}");
    }
}

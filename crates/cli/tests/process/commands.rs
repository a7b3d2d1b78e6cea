//! The client commands in a shell: words in, lines and exit codes out.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sureq_testkit::process::{PATIENCE, Process};

use crate::users::TestUsers;
use crate::{SUREQ, scratch, serve};

/// The output and the exit code of a command.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn command(home: &str, words: &[&str]) -> Command {
    let mut command = Command::new(SUREQ);
    command.args(words).env("SUREQ_HOME", home);
    command
}

fn said(output: Output) -> Said {
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) fn sureq(home: &str, words: &[&str]) -> Said {
    said(command(home, words).stdin(Stdio::null()).output().expect("it starts"))
}

/// The same, with lines on standard input.
pub(crate) fn fed(home: &str, words: &[&str], input: &[u8]) -> Said {
    let mut child = command(home, words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A command that is refused may end before it reads its input.
    if let Err(error) = child.stdin.take().expect("it is piped").write_all(input) {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    }
    said(child.wait_with_output().expect("it ends"))
}

/// The output of a command that must succeed, line by line.
pub(crate) fn lines(home: &str, words: &[&str]) -> Vec<String> {
    let Said { code, out, err } = sureq(home, words);
    assert_eq!(code, 0, "{words:?}: {err}");
    out.lines().map(str::to_owned).collect()
}

pub(crate) fn check_refused(home: &str, words: &[&str], code: i32, why: &str) {
    let said = sureq(home, words);
    assert_eq!(said.code, code, "{words:?}: {}{}", said.out, said.err);
    assert!(said.err.contains(why), "{words:?} says {:?}, not {why:?}", said.err);
    assert_eq!(said.out, "", "{words:?}");
}

pub(crate) fn in_dir(dir: &Path) -> String {
    format!("file:{}", dir.join("store").display())
}

pub(crate) fn on_server(address: SocketAddr) -> String {
    format!("sureq://{address}")
}

#[test]
fn tasks_are_pushed_as_arguments_files_and_lines_and_popped_unchanged() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    let file = dir.path().join("bytes");
    std::fs::write(&file, b"\xff\nnot text").expect("the file can be written");
    assert_eq!(lines(home, &["push", "q", "one", "two"]).len(), 2);
    assert_eq!(lines(home, &["push", "q", "--file", file.to_str().expect("a path")]).len(), 1);
    let pushed = fed(home, &["push", "q"], b"three\n\nfive");
    assert_eq!((pushed.code, pushed.out.as_str()), (0, "3 tasks pushed\n"));
    assert_eq!(fed(home, &["push", "q", "--ids"], b"six\n").out.lines().count(), 1);
    let output = command(home, &["pop", "q", "-n", "9", "--raw", "--ack"]).output().expect("it starts");
    assert_eq!(output.stdout, b"one\ntwo\n\xff\nnot text\nthree\n\nfive\nsix\n");
    let stats = lines(home, &["stats", "q", "--json"]).concat();
    assert!(
        stats.contains(r#""ready":0,"delayed":0,"leased":0"#) && stats.contains(r#""finished":7"#),
        "{stats}"
    );
}

#[test]
fn a_payload_that_is_no_text_is_base64_in_json() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    fed(home, &["push", "q", "--file", "-"], b"\xff");
    let popped = lines(home, &["pop", "q", "--json"]).concat();
    assert!(popped.contains(r#""payload_base64":"/w==""#), "{popped}");
}

#[test]
fn exit_codes_match_the_outcome() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    check_refused(home, &["queues"], 1, "there is no store in");
    lines(home, &["push", "q", "a"]);
    check_refused(home, &["pop", "other"], 4, "");
    check_refused(home, &["explain", "q", "1-1"], 4, "no task 1-1 in q");
    check_refused(home, &["ack", "q", "nonsense"], 1, "malformed task id");
    check_refused(home, &["purge", "q"], 2, "This permanently removes 1 task of q: confirm it with --yes");
    check_refused(home, &["config", "q", "colour=red"], 2, "unknown setting 'colour'");
    check_refused(home, &["config", "q", "tries"], 2, "write NAME=VALUE");
    check_refused(home, &["push", "q", "a", "--delay", "soon"], 2, "write a number with its unit");
    check_refused(home, &["push", "q", "a", "--priority", "200"], 2, "200");
    check_refused(home, &["push", "q", "a", "--tries", "0"], 2, "0 is not in 1..");
    for words in [&["push", "q", "a", "--ttl", "0s"][..], &["pop", "q", "--lease", "0s"]] {
        check_refused(home, words, 2, "write a time longer than 0");
    }
    check_refused(home, &["work", "q"], 2, "COMMAND");
    check_refused("ftp://here", &["queues"], 1, "is not the URL of a home");
    check_refused("sureq://127.0.0.1:1", &["queues"], 69, "127.0.0.1:1");
    check_refused("redis://127.0.0.1:1", &["queues"], 69, "cannot open");
    assert_eq!(lines(home, &["purge", "q", "--yes"]), ["1 task removed"]);
}

#[test]
fn a_closed_pipe_ends_the_command_without_an_error() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    let many = "a task\n".repeat(20_000);
    assert_eq!(fed(home, &["push", "q"], many.as_bytes()).code, 0);
    let mut child = command(home, &["inspect", "q", "-n", "20000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = [0; 100];
    let mut out = child.stdout.take().expect("it is piped");
    out.read_exact(&mut first).expect("it begins to print");
    drop(out);
    let said = said(child.wait_with_output().expect("it ends"));
    assert_eq!((said.code, said.err.as_str()), (0, ""));
}

/// A server that greets, and then answers one command after the other with these replies.
fn fake(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("the command connects");
        let mut room = [0; 4096];
        let greeting = "%1\r\n$6\r\nserver\r\n$5\r\nsureq\r\n";
        for answer in [greeting].iter().chain(answers) {
            let heard = client.read(&mut room).expect("the command sends a request");
            assert!(heard > 0, "the command did not ask for {answer}");
            client.write_all(answer.as_bytes()).expect("it listens");
        }
        // The connection closes when the client closes it, or at once.
        drop(listener);
    });
    on_server(address)
}

/// The reply with one task of each of two queues.
const POPPED: &str = "*2\r\n\
    *5\r\n$1\r\na\r\n$3\r\n1-1\r\n$3\r\none\r\n$7\r\n1-1@1.1\r\n:1\r\n\
    *5\r\n$1\r\nb\r\n$3\r\n1-2\r\n$3\r\ntwo\r\n$7\r\n1-2@1.1\r\n:1\r\n";

fn pop_and_ack(answers: &'static [&'static str]) -> Said {
    sureq(&fake(answers), &["pop", "a", "b", "-n", "2", "--ack", "--raw"])
}

#[test]
fn pop_with_ack_prints_only_finished_tasks() {
    let all = pop_and_ack(&[POPPED, "*1\r\n$7\r\n1-1@1.1\r\n", "*1\r\n$7\r\n1-2@1.1\r\n"]);
    assert_eq!((all.code, all.out.as_str(), all.err.as_str()), (0, "one\ntwo\n", ""));
    let one = pop_and_ack(&[POPPED, "*0\r\n", "*1\r\n$7\r\n1-2@1.1\r\n"]);
    assert_eq!((one.code, one.out.as_str()), (0, "two\n"));
    assert!(one.err.contains("1 task not finished: another client holds it now"), "{}", one.err);
    let none = pop_and_ack(&[POPPED, "*0\r\n", "*0\r\n"]);
    assert_eq!((none.code, none.out.as_str()), (4, ""));
}

#[test]
fn tasks_finished_before_an_error_are_printed() {
    let refused = pop_and_ack(&[POPPED, "*1\r\n$7\r\n1-1@1.1\r\n", "-UNAVAILABLE nothing was done: no\r\n"]);
    assert_eq!((refused.code, refused.out.as_str()), (69, "one\n"));
    assert!(refused.err.contains("1 task printed; then nothing was done: no"), "{}", refused.err);
    assert!(refused.err.contains("sureq: not finished: 1-2@1.1 of b\n"), "{}", refused.err);
    let none = pop_and_ack(&[POPPED, "-UNKNOWN outcome unknown: no\r\n"]);
    assert_eq!((none.code, none.out.as_str()), (70, ""));
    let rest = "it may be delivered again: 1-1@1.1 of a\nsureq: not finished: 1-2@1.1 of b\n";
    assert!(none.err.contains(rest), "{}", none.err);
    let lost = pop_and_ack(&[POPPED, "*0\r\n", "-UNAVAILABLE nothing was done: no\r\n"]);
    assert_eq!((lost.code, lost.out.as_str()), (69, ""));
    assert!(lost.err.contains("1 task not finished: another client holds it now"), "{}", lost.err);
    // A task that may be redelivered is not printed: otherwise it could be printed twice.
    let unknown = pop_and_ack(&[POPPED, "*1\r\n$7\r\n1-1@1.1\r\n", "-UNKNOWN outcome unknown: no\r\n"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (70, "one\n"));
    assert!(unknown.err.contains("it may be delivered again: 1-2@1.1 of b"), "{}", unknown.err);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    let most = "18446744073709551615";
    let seconds = &format!("{most}s");
    for words in [
        &["work", "q", "--grace", "500000000000y", "--", "true"][..],
        &["work", "q", "--timeout", seconds, "--", "true"],
        &["return", "q", "1-1", "--delay", "584942417y"],
        &["push", "q", "x", "--delay", seconds],
        &["pop", "q", "--wait", seconds],
    ] {
        check_refused(home, words, 2, "write at most 36600d");
    }
    for option in ["--tasks", "--clients", "--batch", "--payload", "--rounds"] {
        check_refused(home, &["bench", option, most], 2, "invalid value");
    }
    check_refused(home, &["work", "q", "--jobs", "0", "--", "true"], 2, "0 is not in 1..");
    check_refused(home, &["extend", "q", "1-1", "0s"], 2, "write a time longer than 0");
}

#[test]
fn an_interrupted_push_reports_the_confirmed_tasks() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    lines(home, &["config", "q", "max-length=1500"]);
    let many = "a task\n".repeat(3_000);
    let said = fed(home, &["push", "q"], many.as_bytes());
    assert_eq!(said.code, 75);
    let ready = info_of(home, "q")["ready"].clone();
    let confirmed = format!("{} tasks confirmed; then the queue is full", thousands(&ready));
    assert!(said.err.contains(&confirmed) && ready.as_u64() >= Some(1_000), "{ready}: {}", said.err);
    // Payloads that are pushed one by one are counted one by one.
    lines(home, &["config", "few", "max-length=3"]);
    let said = fed(home, &["push", "few", "--tries", "2"], b"1\n2\n3\n4\n5\n");
    assert!(said.err.contains("3 tasks confirmed; then the queue is full"), "{}", said.err);
}

fn info_of(home: &str, queue: &str) -> serde_json::Value {
    serde_json::from_str(&lines(home, &["stats", queue, "--json"]).concat()).expect("it is JSON")
}

/// 1234 as 1,234; below a million.
fn thousands(number: &serde_json::Value) -> String {
    let number = number.as_u64().expect("a number");
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

#[test]
fn a_closed_pipe_stops_printing_ids_but_not_the_push() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    let mut child = command(home, &["push", "q", "--ids"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    child
        .stdin
        .take()
        .expect("it is piped")
        .write_all("a task\n".repeat(20_000).as_bytes())
        .expect("it reads on");
    let said = said(child.wait_with_output().expect("it ends"));
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(info_of(home, "q")["ready"], 20_000);
}

/// One command of a home pushes 10,000 tasks at most; `sureq push` pushes any number, given as arguments or as lines.
#[test]
fn more_tasks_are_pushed_than_one_command_takes() {
    const TASKS: usize = 10_001;
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let numbers: Vec<String> = (0..TASKS).map(|n| n.to_string()).collect();
    let words: Vec<&str> = ["push", "q"].into_iter().chain(numbers.iter().map(String::as_str)).collect();
    for home in [in_dir(dir.path()), on_server(server.resp)] {
        assert_eq!(lines(&home, &words).len(), TASKS, "{home}");
        let fed = fed(&home, &["push", "q"], numbers.join("\n").as_bytes());
        assert_eq!((fed.code, fed.out.as_str()), (0, "10,001 tasks pushed\n"), "{home}: {}", fed.err);
        let shown = lines(&home, &["inspect", "q", "-n", "30000", "--json"]);
        assert_eq!(shown.len(), 2 * TASKS, "{home}");
        for (n, line) in shown.iter().enumerate() {
            let task: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(task["payload"], *numbers[n % TASKS], "{home}");
        }
    }
}

#[test]
fn each_line_is_pushed_before_the_next_one_arrives() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).start();
    let home = &on_server(server.resp);
    let mut child = command(home, &["push", "q", "--ids"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (mut stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut ids = BufReader::new(stdout).lines();
    // An incomplete line does not hold up complete ones.
    for (text, whole) in [("one\n", 1), ("two\nthree\nfo", 2), ("ur\n", 1)] {
        stdin.write_all(text.as_bytes()).expect("it reads");
        for _ in 0..whole {
            ids.next().expect("it is pushed while the input is open").expect("a line");
        }
    }
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    assert_eq!(info_of(home, "q")["ready"], 4);
}

#[test]
fn a_user_without_the_role_is_refused_and_a_worker_does_not_retry() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "root").start();
    let as_one = |user: &str, token: &str| format!("sureq://{user}:{token}@{}", server.resp);
    let (mailer, worker) = (as_one("mailer", &users.mailer_token), as_one("worker", &users.worker_token));
    check_refused(
        &mailer,
        &["push", "other", "x"],
        77,
        "NOPERM user 'mailer' may not run 'rq.push' on 'other'",
    );
    for words in [
        // The user may not pop from that queue.
        &["work", "other", "--", "true"][..],
        // The user may pop, but not read whether tasks are left.
        &["work", "emails", "--until-empty", "--", "true"],
    ] {
        let mut process = Process::start(&mut command(&worker, words));
        assert_eq!(process.exit_code(PATIENCE), 77, "{words:?}: {process}");
        assert!(process.stderr().contains("NOPERM user 'worker' may not run"), "{process}");
    }
}

#[test]
fn a_setting_that_is_a_time_has_its_unit() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    check_refused(home, &["config", "q"], 1, "there is no store in");
    assert!(!dir.path().join("store").exists(), "reading a setting creates nothing");
    let set = |change: &str| lines(home, &["config", "q", change])[0].clone();
    check_refused(home, &["config", "q", "lease=30"], 2, "lease=30: write a number with its unit");
    check_refused(home, &["config", "q", "lease=101y"], 2, "lease=101y: write at most 36600d");
    assert_eq!(set("lease=30s"), "lease        30000ms");
    assert_eq!(set("LEASE=30000ms"), "lease        30000ms", "the printed value can be set");
    assert_eq!(set("lease=0.5ms"), "lease        1ms");
    assert!(lines(home, &["config", "q", "--json"]).concat().contains(r#""lease":"1""#));
    assert_eq!(set("lease=0"), "lease        0");
    assert_eq!((set("lease=1s"), set("lease=")), ("lease        1000ms".into(), "lease        0".into()));
}

#[test]
fn names_and_payloads_are_any_bytes() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    let os = |bytes: &'static [u8]| OsStr::from_bytes(bytes).to_owned();
    let ask = |words: &[OsString]| {
        let said = said(Command::new(SUREQ).args(words).env("SUREQ_HOME", home).output().expect("it starts"));
        assert_eq!(said.code, 0, "{words:?}: {}", said.err);
        said.out
    };
    let odd = os(b"q\xff");
    ask(&["push".into(), odd.clone(), os(b"\xfe")]);
    lines(home, &["push", "tab\tname", "x"]);
    let queues = lines(home, &["queues", "--json"]);
    assert!(queues[0].starts_with(r#"{"name_base64":"cf8=","ready":1"#), "{queues:?}");
    assert!(queues[1].starts_with(r#"{"name":"tab\tname","ready":1"#), "{queues:?}");
    let json: serde_json::Value = serde_json::from_str(&queues[1]).expect("it is JSON");
    let fed_back = json["name"].as_str().expect("a name");
    assert!(lines(home, &["pop", fed_back, "--json"])[0].starts_with(r#"{"queue":"tab\tname","id":"#));
    let popped = ask(&["pop".into(), odd.clone(), "--json".into()]);
    assert!(
        popped.starts_with(r#"{"queue_base64":"cf8=","#) && popped.contains(r#""payload_base64":"/g==""#),
        "{popped}"
    );
    assert_eq!(ask(&["pause".into(), odd]), "q\\xff is paused\n");
}

#[test]
fn a_start_before_the_first_task_lists_all_tasks() {
    let dir = scratch();
    let home = &in_dir(dir.path());
    lines(home, &["push", "q", "a", "b", "c", "d"]);
    let seen = |start: &str| lines(home, &["inspect", "q", "--start", start, "--json"]).len();
    assert_eq!(["-10", "-4", "-1", "0"].map(seen), [4, 4, 1, 4]);
    check_refused(home, &["inspect", "none", "--start", "-10"], 4, "");
}

#[test]
fn bench_compares_two_homes() {
    let (dir, other) = (scratch(), scratch());
    let words = ["bench", "--tasks", "200", "--rounds", "1", "--json", "--against", &in_dir(other.path())];
    let measured = lines(&in_dir(dir.path()), &words);
    assert_eq!(measured.len(), 4);
    assert!(measured.iter().all(|line| line.contains(r#""ratio":"#) && !line.contains(r#""ratio":null"#)));
    assert_eq!(lines(&in_dir(dir.path()), &["queues"]), ["no queue has tasks"]);
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let dir = scratch();
    assert!(lines("mem:", &["completions", "bash"]).len() > 100);
    let pages = dir.path().join("man");
    lines("mem:", &["man", "--dir", pages.to_str().expect("a path")]);
    let page = std::fs::read_to_string(pages.join("sureq-work.1")).expect("there is a page per command");
    assert!(page.contains("SUREQ_DELIVERY"));
}

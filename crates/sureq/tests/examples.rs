//! The examples do what their first lines say. `cargo test -p sureq` builds them beside this test.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use sureq_testkit::process::{PATIENCE, Process, run};
use sureq_testkit::redis_server::RedisServer;

fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this runs");
    let built = test.ancestors().nth(2).expect("tests are two levels below");
    let program = built.join("examples").join(name);
    assert!(program.exists(), "{} is not built: run `cargo build -p sureq --examples`", program.display());
    program
}

/// Runs an example to its end; returns its output.
fn example(name: &str, arguments: &[&str]) -> String {
    run(program(name).to_str().expect("a path of this build"), arguments)
}

#[test]
fn push_and_work() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let said = example("push_and_work", &[dir.path().to_str().expect("a name")]);
    for line in [
        "sent \"hello\" to ann@example.org\n",
        "sent \"hello\" to bob@example.org\n",
        "2 done, 1 tries failed, 1 dead\n",
        "dead: {\"to\":\"nobody\",\"subject\":\"hello\"}: not an address\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
}

#[test]
fn embedded_in_axum() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(program("embedded_in_axum"));
    let mut server = Process::start(command.arg("127.0.0.1:0").arg(dir.path()));
    let address =
        server.find_in_stdout(|line| line.strip_prefix("listening on ").map(|it| it.trim().to_owned()));
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&*address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    let pushed = ask(
        "POST /greetings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert!(pushed.starts_with("HTTP/1.1 202 Accepted\r\n"), "{pushed}");
    server.find_in_stdout(|line| (line == "greeting: hello\n").then_some(()));
    let counted = ask("GET /count HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(counted.contains("0 waiting, "), "{counted}");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.exit_code(PATIENCE), 0);
    assert!(server.stdout().contains("1 done\n"), "{server}");
}

#[test]
fn worker_on_redis() {
    let redis = RedisServer::start();
    let said = example("worker_on_redis", &[&redis.url()]);
    for n in 1..=5 {
        assert!(said.contains(&format!(": resized image-{n}.png\n")), "{said}");
    }
    assert!(said.ends_with("5 done\n"), "{said}");
}

#[test]
fn at_most_once() {
    assert_eq!(
        example("at_most_once", &[]),
        "at least once: sounded 3 times\nat most once: sounded 1 time\n"
    );
}

#[test]
fn fencing() {
    let expected = "\
the first worker has delivery 1 and falls asleep
the second worker has delivery 2
the second worker writes: true
the second worker finishes: true
the next task, delivery 1, writes: true
the next task is finished: true
the first worker writes: false
the first worker finishes: false
ann has 200
";
    assert_eq!(example("fencing", &[]), expected);
}

#[test]
fn storing_results() {
    let redis = RedisServer::start();
    let said = example("storing_results", &[&redis.url()]);
    assert_eq!(said, "the square is 9\nthe square is 144\n2 done\n");
    let mut connection = redis.connect();
    let kept: Vec<String> = redis::cmd("KEYS").arg("results:*").query(&mut connection).expect("it answers");
    assert_eq!(kept.len(), 2);
    for key in kept {
        let seconds: i64 = redis::cmd("TTL").arg(key).query(&mut connection).expect("it answers");
        assert!((3_000..=3_600).contains(&seconds), "kept for {seconds} s");
    }
}

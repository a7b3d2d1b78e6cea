//! Users and their permissions, from the first byte on.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use std::io::Write as _;

use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::server_process::{Launch, Server};

use crate::{SUREQ, scratch, serve};

/// The password of root.
const PASSWORD: &str = "open sesame";

/// Runs `sureq user …`.
fn sureq_user(words: &[&str], input: &str) -> Vec<String> {
    let mut command = Command::new(SUREQ);
    let piped = command.arg("user").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().expect("it runs");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{words:?}: {}", output.status);
    String::from_utf8(output.stdout).expect("it prints text").lines().map(str::to_owned).collect()
}

/// Three users: root may do everything, mailer may produce to and read `emails*`, worker may consume two queues.
pub(crate) struct TestUsers {
    pub(crate) file: PathBuf,
    root_token: String,
    pub(crate) mailer_token: String,
    pub(crate) worker_token: String,
}

impl TestUsers {
    pub(crate) fn write(dir: &Path) -> Self {
        let hash = &sureq_user(&["hash"], &format!("{PASSWORD}\n"))[0];
        let token = || sureq_user(&["token"], "");
        let (root, mailer, worker) = (token(), token(), token());
        let text = format!(
            "[[user]]\nname = \"root\"\npassword = \"{hash}\"\ntokens = [\"{}\"]\nallow.admin = [\"*\"]\n\n\
             [[user]]\nname = \"mailer\"\ntokens = [\"{}\"]\nallow = {{ produce = [\"emails*\"], read = [\"emails*\"] }}\n\n\
             [[user]]\nname = \"worker\"\ntokens = [\"{}\"]\nallow.consume = [\"emails\", \"default\"]\n",
            root[1], mailer[1], worker[1]
        );
        let file = dir.join("users.toml");
        std::fs::write(&file, text).expect("the file can be written");
        let [root_token, mailer_token, worker_token] =
            [root, mailer, worker].map(|mut lines| lines.remove(0));
        Self { file, root_token, mailer_token, worker_token }
    }

    /// A server with these users, whose text port acts as `text_user`.
    pub(crate) fn launch(&self, dir: &Path, text_user: &str) -> Launch {
        serve(&dir.join("data"))
            .args(["--text-user", text_user, "--threads", "1", "--users"])
            .args([self.file.as_os_str()])
    }

    /// A client of root with a token: the check of a password would distort the server's memory.
    pub(crate) fn root(&self, server: &Server) -> RespClient {
        logged_in(server, &["root", &self.root_token])
    }

    pub(crate) fn mailer(&self, server: &Server) -> RespClient {
        logged_in(server, &["mailer", &self.mailer_token])
    }

    pub(crate) fn worker(&self, server: &Server) -> RespClient {
        logged_in(server, &["worker", &self.worker_token])
    }
}

/// A connection that has authenticated.
fn logged_in(server: &Server, credentials: &[&str]) -> RespClient {
    let mut client = server.client();
    assert_eq!(client.command(&[&["AUTH"], credentials].concat()).text(), "OK");
    client
}

fn root(server: &Server) -> RespClient {
    logged_in(server, &["root", PASSWORD])
}

const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";

#[test]
fn a_connection_must_authenticate_first() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").start();
    let mut client = server.client();
    for row in sureq_proto::verbs::TABLE.iter().filter(|row| !row.flags.contains(&"no_auth")) {
        assert_eq!(client.command(&[row.name, "x", "y"]).error(), NO_AUTH, "{}", row.name);
    }
    assert_eq!(client.say("NONSENSE").error(), NO_AUTH);
    assert!(client.say("HELLO 3").error().starts_with("NOAUTH HELLO must be called"));
    for wrong in [&["root", "open"][..], &["root", &users.mailer_token], &["nobody", PASSWORD], &[PASSWORD]] {
        assert_eq!(client.command(&[&["AUTH"], wrong].concat()).error(), WRONG, "{wrong:?}");
    }
    assert_eq!(client.say("PING").error(), NO_AUTH, "a wrong password does not authenticate");
    assert_eq!(client.command(&["AUTH", "root", PASSWORD]).text(), "OK");
    assert_eq!(client.say("ACL WHOAMI").text(), "root");
    assert_eq!(client.command(&["AUTH", "root", "wrong"]).error(), WRONG);
    assert_eq!(client.say("ACL WHOAMI").text(), "root", "a failed login keeps the user");
    assert_eq!(client.command(&["AUTH", &users.mailer_token]).text(), "OK", "a token identifies its user");
    assert!(client.say("CLIENT INFO").text().ends_with(" user=mailer\n"));
    assert_eq!(client.say("RESET").text(), "RESET");
    assert_eq!(client.say("PING").error(), NO_AUTH);

    let hello = client.command(&["HELLO", "3", "AUTH", "root", PASSWORD, "SETNAME", "me"]).list();
    assert!(hello.contains(&Value::Bulk(b"proto".to_vec())) && hello.contains(&Value::Int(3)), "{hello:?}");
    assert!(client.say("CLIENT LIST").text().contains(" name=me "));
    assert_eq!(client.command(&["HELLO", "2", "AUTH", "root", "wrong"]).error(), WRONG);
}

#[test]
fn pipelined_commands_run_as_the_user_that_authenticated_before_them() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").start();
    let push = encode(&["RQ.PUSH", "emails", "x"]);
    let pop = encode(&["RQ.POP", "emails"]);
    let auth = |user: &str, secret: &str| encode(&["AUTH", user, secret]);
    let mut client = server.client();
    let large = encode(&["RQ.PUSH", "emails", &"x".repeat(1 << 20)]);
    let pipeline = [
        push.clone(),
        auth("root", PASSWORD),
        large,
        auth("mailer", &users.mailer_token),
        push.clone(),
        pop.clone(),
        auth("worker", &users.worker_token),
        pop,
        push.clone(),
        encode(&["RESET"]),
        push,
    ];
    client.send_raw(&pipeline.concat()).expect("the server reads");
    assert_eq!(client.reply().error(), NO_AUTH);
    assert_eq!(client.reply().text(), "OK");
    assert_eq!(client.reply().ids().len(), 1);
    assert_eq!(client.reply().text(), "OK");
    assert_eq!(client.reply().ids().len(), 1);
    assert!(client.reply().error().starts_with("NOPERM user 'mailer' may not run 'rq.pop'"));
    assert_eq!(client.reply().text(), "OK");
    assert_eq!(client.reply().tasks().len(), 1);
    assert!(client.reply().error().starts_with("NOPERM user 'worker' may not run 'rq.push'"));
    assert_eq!(client.reply().text(), "RESET");
    assert_eq!(client.reply().error(), NO_AUTH);
}

#[test]
fn each_user_can_use_its_roles_and_nothing_else() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "mailer").start();
    let (mut root, mut mailer, mut worker) = (root(&server), users.mailer(&server), users.worker(&server));
    let id = mailer.push("emails", "one");
    mailer.push("emails:later", "two");
    root.push("secrets", "three");
    let refused = |client: &mut RespClient, line: &str, why: &str| {
        let said = client.say(line).error();
        assert!(said.starts_with("NOPERM ") && said.contains(why), "{line}: {said}");
    };
    refused(
        &mut mailer,
        "RQ.PUSH secrets x",
        "'mailer' may not run 'rq.push' on 'secrets': that needs the role produce",
    );
    refused(&mut mailer, "RQ.POP COUNT 5 emails", "the role consume");
    refused(&mut mailer, "RQ.INFO secrets", "'rq.info' on 'secrets'");
    refused(&mut mailer, "EXISTS emails secrets", "on 'secrets'");
    refused(&mut mailer, "DEL emails", "the role admin");
    refused(&mut mailer, "KEYS *", "on '*'");
    refused(&mut mailer, "SCAN 0", "on '*'");
    refused(
        &mut worker,
        "RQ.POP BLOCK 0 emails secrets",
        "'rq.pop' on 'secrets': that needs the role consume there",
    );
    refused(&mut worker, "RQ.POP emails:later", "on 'emails:later'");
    refused(&mut worker, "RQ.INSPECT emails 0 1", "the role read");
    let keys = mailer.say("KEYS emails*").list();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_eq!(worker.pop("emails", 5).len(), 1);
    assert!(worker.ack("emails", &id));
    assert_eq!(
        mailer.say("RQ.INFO nonsense").error().split(' ').next(),
        Some("NOPERM"),
        "missing queues are not disclosed"
    );
    assert_eq!(root.counts("secrets"), (1, 0));
    assert_eq!(root.say("DBSIZE"), Value::Int(2));
    assert_eq!(root.say("CLIENT LIST").text().lines().count(), 3);
    let own = mailer.say("CLIENT LIST").text();
    assert!(own.lines().count() == 1 && own.contains("user=mailer"), "{own}");

    let mut text = server.text_client();
    assert_eq!(text.say("ADD 0 x"), "refused NOPERM: the user of this port may not do that");
    for line in ["RESERVE", "DELETE x", "RETURN x 0", "STATS"] {
        assert_eq!(text.say(line), "refused NOPERM: the user of this port may not do that", "{line}");
    }
    assert_eq!(text.say("nonsense"), "unknown command");
}

#[test]
fn the_text_port_acts_as_its_user() {
    let dir = scratch();
    let server = TestUsers::write(dir.path()).launch(dir.path(), "worker").start();
    let id = root(&server).push("default", "x");
    let mut text = server.text_client();
    assert!(text.say("ADD 0 y").starts_with("refused NOPERM"));
    let reserved = text.say("RESERVE");
    assert!(reserved.ends_with(" BODY x"), "{reserved} {id}");
    assert_eq!(text.say(&format!("DELETE {}", reserved.split(' ').nth(1).expect("it has an id"))), "ok");
    assert!(text.say("STATS").starts_with("refused NOPERM"));
}

/// How much more memory the server uses than before.
fn growth(server: &Server, before: u64) -> u64 {
    server.resident_bytes().saturating_sub(before)
}

#[test]
fn a_forbidden_push_is_refused_before_its_payload_arrives() {
    const PAYLOAD_BYTES: usize = 60 << 20;
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").start();
    let (mut mailer, mut observer) = (users.mailer(&server), root(&server));
    mailer.push("emails", "warm up");
    let before = server.resident_bytes();
    let head = format!("*3\r\n$7\r\nRQ.PUSH\r\n$7\r\nsecrets\r\n${PAYLOAD_BYTES}\r\n");
    for _ in 0..2 {
        mailer.send_raw(head.as_bytes()).expect("the server reads");
        assert!(mailer.reply().error().starts_with("NOPERM "), "it is refused before the payload is sent");
        let (piece, mut most) = (vec![b'x'; 1 << 20], 0);
        for _ in 0..PAYLOAD_BYTES / piece.len() {
            mailer.send_raw(&piece).expect("the server reads");
            most = most.max(growth(&server, before));
        }
        assert!(most < 4 << 20, "{most} bytes of a refused command were kept");
        mailer.send_raw(b"\r\n").expect("the server reads");
        assert_eq!(mailer.say("PING").text(), "PONG", "the connection continues");
    }
    assert_eq!(observer.counts("secrets"), (0, 0));
    mailer.push("emails", vec![b'y'; PAYLOAD_BYTES]);
    assert_eq!(observer.counts("emails"), (2, 0));
}

#[test]
fn slow_password_checks_do_not_delay_others() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").start();
    let mut quick = users.mailer(&server);
    let mut guessing: Vec<RespClient> = (0..20).map(|_| server.client()).collect();
    for client in &mut guessing {
        client.send_raw(&encode(&["AUTH", "root", "guess"])).expect("the server reads");
    }
    let guesses = std::thread::spawn(move || {
        for client in &mut guessing {
            assert_eq!(client.reply().error(), WRONG);
        }
    });
    let machine = MachineWatch::start();
    let (mut slowest, mut pings) = (Duration::ZERO, 0);
    while !guesses.is_finished() {
        let sent = Instant::now();
        assert_eq!(quick.say("PING").text(), "PONG");
        slowest = slowest.max(sent.elapsed());
        pings += 1;
        // A token needs no slow check, and therefore does not wait behind passwords.
        if pings % 100 == 1 {
            let sent = Instant::now();
            users.worker(&server);
            slowest = slowest.max(sent.elapsed());
        }
    }
    guesses.join().expect("all are answered");
    machine.assert_within(slowest, Duration::from_millis(200), "a PING");
    assert!(pings > 20, "{pings}");
}

#[test]
fn wrong_passwords_are_answered_late_and_a_limited_number_of_times() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").start();
    let long = "x".repeat(2000);
    for (user, password) in [("root", "wrong"), ("nobody", "wrong"), ("worker", "wrong"), ("root", &long)] {
        let mut client = server.client();
        for _ in 0..5 {
            let sent = Instant::now();
            assert_eq!(client.command(&["AUTH", user, password]).error(), WRONG, "{user}");
            assert!(sent.elapsed() >= Duration::from_millis(250), "{user} was refused at once");
        }
        assert!(client.is_closed(), "{user} can continue to guess");
    }
    assert_eq!(root(&server).say("PING").text(), "PONG");
}

#[test]
fn an_unauthenticated_connection_is_closed_in_time() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").args(["--login-time", "1"]).start();
    let mut known = users.mailer(&server);
    let (mut silent, mut talking) = (server.client(), server.client());
    talking.send_raw(b"*2\r\n$4\r\nAUTH\r\n").expect("the server reads");
    assert!(silent.is_closed() && talking.is_closed());
    assert_eq!(known.say("PING").text(), "PONG");
}

#[test]
fn a_stopping_server_answers_a_login_in_progress() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let mut server = users.launch(dir.path(), "worker").start();
    let mut client = server.client();
    client.send_raw(&encode(&["AUTH", "root", "wrong"])).expect("the server reads");
    // The first of two clients that wait for a check: when a later one is answered, its request has been read.
    assert_eq!(logged_in(&server, &[&users.mailer_token]).say("PING").text(), "PONG");
    server.terminate();
    assert_eq!(client.reply().error(), WRONG);
    assert_eq!(server.exit_code(Duration::from_secs(5)), 0);
}

//! The settings of `sureq serve`: their precedence, and refused values.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use sureq_testkit::process::Process;
use sureq_testkit::server_process::Launch;

use crate::users::TestUsers;
use crate::{SUREQ, scratch, serve};

fn bare() -> Launch {
    Launch::new(SUREQ).args(["serve"])
}

/// The first line of a server that starts.
fn welcome(process: &Process) -> String {
    process.find_in_stdout(|line| line.contains("is ready").then(|| line.trim_end().to_owned()))
}

/// Waits until a running process has printed this; its two streams are not ordered.
fn expect_said(process: &Process, what: &str) {
    process.find_in_stderr(|line| line.contains(what).then_some(()));
}

/// Starts a server that must be refused; returns its output.
fn refused(launch: &Launch, code: i32) -> String {
    let mut process = launch.spawn();
    assert_eq!(process.exit_code(Duration::from_secs(10)), code, "{launch:?}:\n{process}");
    assert!(process.stdout().is_empty(), "{process}");
    process.stderr()
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let dir = scratch();
    let file = dir.path().join("sureq.toml");
    let home = dir.path().join("from-the-file");
    let settings = format!(
        "home = \"file:{}\"\nresp = \"127.0.0.1:0\"\ntext = \"off\"\ndurability = \"interval\"\n",
        home.display()
    );
    std::fs::write(&file, settings).expect("the file can be written");
    let with_file = bare().args(["--config".as_ref(), file.as_os_str()]);

    let output = welcome(&with_file.spawn());
    assert!(
        output.contains("from-the-file") && output.ends_with("durability interval (on disk within 100 ms)"),
        "{output}"
    );
    let with_environment = with_file.env("SUREQ_DURABILITY", "none");
    let output = welcome(&with_environment.spawn());
    assert!(output.contains("from-the-file") && output.ends_with("durability none (no fsync)"), "{output}");
    let output = welcome(&with_environment.clone().args(["--durability", "always"]).spawn());
    assert!(output.ends_with("durability always (on disk before each reply)"), "{output}");

    let by_environment = bare().env("SUREQ_CONFIG", &file).env("SUREQ_SERVE_HOME", "mem:");
    assert!(welcome(&by_environment.spawn()).ends_with("mem:, nothing is kept"));
    let clients_home = bare().env("SUREQ_CONFIG", &file).env("SUREQ_HOME", "sureq://127.0.0.1:1");
    assert!(welcome(&clients_home.spawn()).contains("from-the-file"), "SUREQ_HOME is for clients");
}

#[test]
fn an_open_listener_is_refused() {
    for (flag, address) in [("--resp", "0.0.0.0:0"), ("--text", "0.0.0.0:0"), ("--resp", "[::]:0")] {
        let said = refused(&bare().args(["--home", "mem:", flag, address]), 1);
        assert!(said.contains(flag) && said.contains("can be reached from other machines"), "{said}");
        assert!(said.contains("127.0.0.1"), "the advice: {said}");
    }
}

#[test]
fn with_users_the_redis_port_may_be_open_and_the_text_port_acts_for_one_of_them() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let users = bare().args(["--home", "mem:", "--users"]).args([users.file.as_os_str()]);
    let process = users.clone().args(["--resp", "0.0.0.0:0"]).spawn();
    let output = process.find_in_stdout(|line| line.contains("Redis clients").then(|| line.to_owned()));
    assert!(output.contains("--user NAME --askpass"), "{output}");
    expect_said(&process, "are not encrypted");
    for (args, why) in [
        (&["--text", "127.0.0.1:0"][..], "--text 127.0.0.1:0: the text protocol has no authentication"),
        (
            &["--text", "0.0.0.0:0", "--text-user", "worker"],
            "--text 0.0.0.0:0 can be reached from other machines",
        ),
        (&["--text-user", "nobody"], "--text-user nobody: no such user"),
        (&["--resp", "off"], "nothing would be served"),
    ] {
        let said = refused(&users.clone().args(args), 1);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let said = refused(&bare().args(["--home", "mem:", "--text-user", "worker"]), 1);
    assert!(said.contains("--text-user worker: no such user"), "{said}");
}

#[test]
fn invalid_users_are_refused_by_name() {
    let dir = scratch();
    let file = dir.path().join("users.toml");
    let token = format!("tokens = [\"sha256:{}\"]", "0".repeat(64));
    for (text, why) in [
        (String::new(), "has no [[user]]"),
        ("[[user]]\nname = \"x\"".to_owned(), "user \"x\": has neither a password nor a token"),
        ("[[user]]\nname = \"x\"\npassword = \"plain\"".to_owned(), "user \"x\": password is not a hash"),
        (format!("[[user]]\n{token}"), "name"),
        (format!("[[user]]\nname = \"x\"\n{token}\nrole = \"admin\""), "role"),
        (format!("[[user]]\nname = \"x\"\n{token}\nallow.write = [\"*\"]"), "write"),
        (format!("[[user]]\nname = \"x\"\n{token}\n").repeat(2), "user \"x\": is configured twice"),
        (format!("[[user]]\nname = \"x\"\n{token}\nname = \"y\""), "name"),
    ] {
        std::fs::write(&file, &text).expect("the file can be written");
        let said = refused(&bare().args(["--home", "mem:", "--users"]).args([file.as_os_str()]), 1);
        assert!(said.contains(why), "{text}: {said}");
        // The same tables in the settings file.
        if !text.is_empty() {
            let said = refused(&bare().args(["--home", "mem:", "--config"]).args([file.as_os_str()]), 1);
            assert!(said.contains(why), "{text}: {said}");
        }
    }
    let said = refused(&bare().args(["--home", "mem:", "--users", "no-such-file.toml"]), 1);
    assert!(said.contains("--users: cannot read no-such-file.toml"), "{said}");
}

#[test]
fn limits_can_be_set() {
    let dir = scratch();
    let limits = ["--connections-max", "2", "--command-args-max", "16", "--command-max", "64KB"];
    let server = serve(dir.path()).args(limits).start();
    let (mut client, mut second, mut third) = (server.client(), server.client(), server.client());
    assert_eq!(client.say("PING").text(), "PONG");
    assert_eq!(second.say("PING").text(), "PONG");
    assert_eq!(third.reply().error(), "ERR max number of clients reached");
    let words = |n: usize| [&["RQ.PUSH", "q"][..], &vec!["x"; n - 2]].concat();
    assert_eq!(client.command(&words(16)).ids().len(), 14);
    assert_eq!(client.command(&words(17)).error(), "ERR Protocol error: invalid multibulk length");
    assert_eq!(second.push("q", vec![b'x'; 65_000]).split('-').count(), 2);
    second.send_raw(b"*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$65537\r\n").expect("the server reads");
    assert_eq!(second.reply().error(), "ERR Protocol error: invalid bulk length");
}

#[test]
fn a_bad_value_is_refused_with_the_name_of_its_option() {
    for flag in [
        "--cache",
        "--memory",
        "--segment-bytes",
        "--threads",
        "--connections-max",
        "--command-args-max",
        "--command-max",
        "--output-max",
        "--login-max",
        "--login-time",
        "--text-rtt",
        "--text-rta",
        "--text-ict",
        "--text-line-max",
    ] {
        for value in ["-1", "-1MB", "99999999999999999999", "x", ""] {
            let mut process = bare().args(["--home", "mem:", flag, value]).spawn();
            let code = process.exit_code(Duration::from_secs(10));
            let said = process.stderr();
            assert!(code == 1 || code == 2, "{flag} {value:?}: {code}");
            assert!(said.contains(flag), "{flag} {value:?}: {said}");
        }
        assert!(refused(&bare().args([flag]), 2).contains(flag));
        assert!(refused(&bare().args([flag, "5", flag, "5"]), 2).contains(flag));
    }
}

#[test]
fn invalid_settings_are_named() {
    for (args, why) in [
        (&["--durability", "often"][..], "--durability often: write always, interval or none"),
        (&["--segment-bytes", "12"], "--segment-bytes: write a size between 64KB and 1GB"),
        (&["--cache", "1"], "--cache: write a size of at least 1MB"),
        (&["--memory", "15MB"], "--memory: write a size of at least 16MB"),
        (
            &["--memory", "64MB", "--cache", "64MB"],
            "--memory 64MB has no room for --cache 64MB and at least 16MB of tasks and connections: write --memory 80MB or more, or a smaller --cache",
        ),
        (&["--segment-bytes", "lots"], "\"lots\" is not a size"),
        (&["--text-line-max", "1GB"], "--text-line-max: write a size"),
        (&["--threads", "0"], "--threads: write a number"),
        (&["--connections-max", "0"], "--connections-max: write a number between 1 and 1000000"),
        (&["--command-args-max", "15"], "--command-args-max: write a number between 16 and 1048576"),
        (&["--command-max", "1GB"], "--command-max: write a size between 64KB and 128MB"),
        (&["--output-max", "1"], "--output-max: write a size between 64KB and 1GB"),
        (&["--login-max", "2MB"], "--login-max: write a size between 4KB and 1MB"),
        (&["--resp", "nonsense"], "--resp nonsense: write an address"),
        (&["--resp", "off", "--text", "off"], "nothing would be served"),
        (&["--home", "redis://x"], "redis://x"),
        (&["--config", "no-such-file.toml"], "cannot read no-such-file.toml"),
    ] {
        let said = refused(&bare().args(args), 1);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    for args in [&["--nonsense"][..], &["--threads", "many"], &["--text-rtt", "-1"]] {
        refused(&bare().args(args), 2);
    }
    let said = refused(&bare().env("SUREQ_DURABILITY", "often"), 1);
    assert!(said.contains("often"), "{said}");
}

#[test]
fn a_small_memory_has_a_small_cache() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--memory", "16MB", "--segment-bytes", "1MB"]).start();
    let mut client = server.client();
    let info = client.say("INFO memory").text();
    assert!(info.contains("maxmemory:16777216\r\n"), "{info}");
    // Tasks that are pushed and finished leave a full cache, and must leave room for others.
    for _ in 0..20 {
        let payload = "x".repeat(1 << 20);
        let id = client.push("q", &payload);
        assert_eq!(client.pop("q", 1)[0].payload, payload.as_bytes());
        assert!(client.ack("q", &id));
    }
    assert_eq!(client.push("q", "the file can be written").split('-').count(), 2);
}

#[test]
fn settings_of_a_disk_are_reported_as_ignored_in_memory() {
    let memory = bare().args(["--home", "mem:", "--resp", "127.0.0.1:0", "--text", "off"]);
    let process = memory.clone().args(["--cache", "64MB", "--memory", "32MB"]).spawn();
    welcome(&process);
    expect_said(&process, "ignoring --cache: mem: keeps nothing on disk");
    let process = memory.clone().args(["--durability", "none", "--segment-bytes", "1MB"]).spawn();
    welcome(&process);
    expect_said(&process, "ignoring --durability, --segment-bytes: mem:");
    let mut process = memory.args(["--memory", "16MB"]).spawn();
    welcome(&process);
    process.signal(Signal::TERM);
    assert_eq!(process.exit_code(Duration::from_secs(10)), 0, "{process}");
    assert!(process.stderr().is_empty(), "{process}");
}

#[test]
fn a_file_with_an_unknown_key_is_refused_by_name() {
    let dir = scratch();
    let file = dir.path().join("sureq.toml");
    for (text, why) in
        [("durabilty = \"none\"", "durabilty"), ("threads = \"x\"", "threads"), ("=", "sureq.toml")]
    {
        std::fs::write(&file, text).expect("the file can be written");
        let said = refused(&bare().args(["--config".as_ref(), file.as_os_str()]), 1);
        assert!(said.contains(why) && said.contains("sureq.toml"), "{text}: {said}");
    }
}

#[test]
fn an_address_in_use_is_refused_and_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    let said = refused(&bare().args(["--home", "mem:", "--resp", &address]), 1);
    assert!(said.contains(&address) && said.contains("in use"), "{said}");
}

#[test]
fn the_home_mem_keeps_nothing_and_leaves_no_file() {
    let launch = bare().args(["--home", "mem:", "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0"]);
    let mut server = launch.start();
    server.client().push("q", "x");
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(5)), 0);
    assert_eq!(launch.start().client().counts("q"), (0, 0));
    assert!(!Path::new("sureq-data").exists());
}

#[test]
fn a_damaged_store_is_refused_with_the_place_and_unchanged() {
    let dir = scratch();
    let data = dir.path().join("data");
    let mut server = serve(&data).start();
    for payload in ["the needle", "hay", "hay"] {
        server.client().push("q", payload);
    }
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(5)), 0);

    let files = || -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(&data).expect("the store is there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
        // The lock contains the id of the process that tried last.
        paths.retain(|path| !path.ends_with("lock"));
        paths.sort();
        paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("it can be read"))).collect()
    };
    let (path, mut bytes) = files()
        .into_iter()
        .find(|(_, bytes)| bytes.windows(10).any(|part| part == b"the needle"))
        .expect("a payload stands in the log as it is");
    let at = bytes.windows(10).position(|part| part == b"the needle").expect("it was found");
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).expect("it can be written");

    let before = files();
    let said = refused(&serve(&data), 65);
    let name = path.file_name().and_then(|name| name.to_str()).expect("its name is text");
    assert!(said.contains(name), "{said}");
    assert!(files() == before, "a file was changed");
}

//! The settings of `sureq serve`: which goes before which, and what is refused.

use std::path::Path;
use std::time::Duration;

use sureq_testkit::process::Process;
use sureq_testkit::server_process::Launch;

use crate::{SUREQ, scratch, serve};

fn bare() -> Launch {
    Launch::new(SUREQ).args(["serve"])
}

/// The first line of a server that starts.
fn welcome(process: &Process) -> String {
    process.find_in_stdout(|line| line.contains("is ready").then(|| line.trim_end().to_owned()))
}

/// Starts what must not start; answers what it said.
fn refused(launch: &Launch, code: i32) -> String {
    let mut process = launch.spawn();
    assert_eq!(process.exit_code(Duration::from_secs(10)), code, "{launch:?}:\n{process}");
    assert!(process.stdout().is_empty(), "{process}");
    process.stderr()
}

#[test]
fn flags_go_before_the_environment_and_the_environment_before_the_file() {
    let dir = scratch();
    let file = dir.path().join("sureq.toml");
    let home = dir.path().join("from-the-file");
    let settings = format!(
        "home = \"file:{}\"\nresp = \"127.0.0.1:0\"\ntext = \"off\"\ndurability = \"interval\"\n",
        home.display()
    );
    std::fs::write(&file, settings).expect("there is room for a file");
    let with_file = bare().args(["--config".as_ref(), file.as_os_str()]);

    let told = welcome(&with_file.spawn());
    assert!(told.contains("from-the-file") && told.ends_with("on disk within 100 ms"), "{told}");
    let with_environment = with_file.env("SUREQ_DURABILITY", "none");
    let told = welcome(&with_environment.spawn());
    assert!(told.contains("from-the-file") && told.ends_with("when the system pleases"), "{told}");
    let told = welcome(&with_environment.clone().args(["--durability", "always"]).spawn());
    assert!(told.ends_with("what is confirmed is on disk"), "{told}");

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
    }
}

#[test]
fn settings_that_make_no_sense_are_named() {
    for (args, why) in [
        (&["--durability", "often"][..], "--durability often: write always, interval or none"),
        (&["--segment-bytes", "12"], "--segment-bytes: write a size between 64KB and 1GB"),
        (&["--cache", "1"], "--cache: write a size of at least 1MB"),
        (&["--segment-bytes", "lots"], "\"lots\" is not a size"),
        (&["--text-line-max", "1GB"], "--text-line-max: write a size"),
        (&["--threads", "0"], "--threads: write a number"),
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
fn a_file_with_an_unknown_key_is_refused_by_name() {
    let dir = scratch();
    let file = dir.path().join("sureq.toml");
    for (text, why) in
        [("durabilty = \"none\"", "durabilty"), ("threads = \"x\"", "threads"), ("=", "sureq.toml")]
    {
        std::fs::write(&file, text).expect("there is room for a file");
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
fn a_damaged_store_is_refused_with_its_place_and_left_as_it_is() {
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
        // The lock names the process that tried last.
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
    assert!(files() == before, "something was changed");
}

//! The image that replaces that of DefferedQ, as far as this can be tested without a container engine: the line that
//! starts the server, the variables that it reads, and the files that it writes.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use sureq_testkit::client::TextClient;
use sureq_testkit::process::Process;

use crate::{SUREQ, root};

/// The instructions of one stage of the Dockerfile, with continued lines joined.
fn stage(name: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("Dockerfile")).expect("there is a Dockerfile");
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_start = |line: &str| line.starts_with("FROM ") && line.ends_with(&format!(" AS {name}"));
    let stage =
        lines.skip_while(|line| !is_start(line)).skip(1).take_while(|line| !line.starts_with("FROM "));
    stage.map(str::to_owned).collect()
}

fn instructions<'s>(stage: &'s [String], word: &'s str) -> impl Iterator<Item = &'s str> {
    stage.iter().filter_map(move |line| line.strip_prefix(word)).map(str::trim)
}

#[test]
fn the_dq_image_starts_as_the_original_does() {
    let stage = stage("dq");
    let entrypoint = instructions(&stage, "ENTRYPOINT ").next().expect("the image has an entry point");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("the path is text").to_owned();
    symlink(SUREQ, path("dq")).expect("a link to the binary");
    fs::create_dir(path("log")).expect("a directory for the log");

    let mut line = entrypoint.to_owned();
    for (image, here) in [
        ("/dq/dq", path("dq")),
        ("-p 12000", "-p 0".to_owned()),
        ("/var/log/dq", path("log")),
        ("/var/lib/dq", path("data")),
    ] {
        assert!(line.contains(image), "{line:?} does not say {image}");
        line = line.replace(image, &here);
    }
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &line]);
    for variable in instructions(&stage, "ENV ").flat_map(str::split_whitespace) {
        let (name, default) = variable.split_once('=').expect("each variable has a default");
        assert_eq!(default, "0", "{name} is off unless it is set");
        shell.env(name, default);
    }
    shell.env("DQ_PROFILER_ENABLED", "1").env("DQ_INACTIVE_CONNECTION_TIME_SECONDS", "600");
    shell.env("DQ_RESERVED_TASK_STUCK_TIME_SECONDS", "30").env("DQ_RESERVED_TASK_STUCK_MAX_ATTEMPTS", "300");
    let mut server = Process::start(&mut shell);

    let log = || fs::read_to_string(path("log/server.log")).unwrap_or_default();
    let started = "with options -ict=600 -rtt=30 -rta=300 -debug=true";
    let port = loop {
        let log = log();
        let line = log.lines().find(|line| line.starts_with("Listening :") && line.ends_with(started));
        if let Some(line) = line {
            let port = line.split([':', ' ']).nth(2).and_then(|port| port.parse::<u16>().ok());
            break port.expect("the line has the port");
        }
        assert!(!server.has_ended(), "{log}{server}");
        std::thread::yield_now();
    };
    let mut client = TextClient::connect(([127, 0, 0, 1], port).into());
    let id = client.add(0, "x");
    assert_eq!(client.say("RESERVE"), format!("TASK {id} BODY x"));
    assert_eq!(client.say(&format!("DELETE {id}")), "ok");
    assert!(fs::exists(path("data/store")).expect("the directory is there"), "the tasks are on the volume");
    assert!(log().contains("Value reserved"), "DQ_PROFILER_ENABLED logs requests: {}", log());

    // The shell was replaced by the server: a signal of the engine ends the server.
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.exit_code(sureq_testkit::process::PATIENCE), 0);
}

#[test]
fn the_serve_image_runs_the_binary_with_its_data_on_a_volume() {
    let stage = stage("sureq");
    assert_eq!(instructions(&stage, "ENTRYPOINT ").collect::<Vec<_>>(), [r#"["/usr/local/bin/sureq"]"#]);
    assert_eq!(instructions(&stage, "CMD ").collect::<Vec<_>>(), [r#"["serve"]"#]);
    assert_eq!(instructions(&stage, "VOLUME ").collect::<Vec<_>>(), ["/var/lib/sureq"]);
    assert_eq!(instructions(&stage, "ENV ").collect::<Vec<_>>(), ["SUREQ_SERVE_HOME=file:/var/lib/sureq"]);
}

//! netcat, for people at a terminal.

use std::process::Command;

use crate::{Fixture, run};

/// Sends lines and returns the output.
pub(crate) fn talk(it: &Fixture, lines: &str) -> String {
    talk_to(&it.text_port(), lines)
}

pub(crate) fn talk_to(port: &str, lines: &str) -> String {
    let replies = run(Command::new("nc").args(["-N", "127.0.0.1", port]), lines.as_bytes());
    String::from_utf8(replies).expect("the replies are text")
}

#[test]
fn netcat_speaks_the_text_dialect() {
    let it = Fixture::start();
    let added = talk(&it, "ADD 0 task_1\r\nADD 3600000 task_2\n");
    let ids: Vec<&str> = added.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    let [first, second] = ids[..] else { panic!("{added:?}") };
    assert_eq!(added, format!("TASK {first} DELAY 0ms\nTASK {second} DELAY 3600000ms\n"));
    assert_eq!(talk(&it, "RESERVE\nRESERVE\n"), format!("TASK {first} BODY task_1\nnil\n"));
    let stats = talk(&it, "STATS\n");
    assert!(stats.starts_with("TASKS 1 RESERVED 1 CONNECTIONS 1 HEAP ") && stats.ends_with("m\n"), "{stats}");
    let back = talk(&it, &format!("RETURN {first} 0\nRESERVE\nDELETE {first}\nDELETE {second}\n"));
    assert_eq!(back, format!("ok\nTASK {first} BODY task_1\nok\nunknown TASK_ID\n"));
    assert_eq!(talk(&it, "SET a b\nADD 0 a b\n"), "unknown command\ninvalid TASK_BODY attr\n");
}

#[test]
fn netcat_speaks_to_the_resp_port_in_plain_lines() {
    let it = Fixture::start();
    let port = it.resp_port();
    assert_eq!(
        talk_to(&port, "PING\r\nRQ.POP q\r\nSET a b\r\n"),
        concat!("+PONG\r\n*0\r\n", "-ERR unknown command 'SET', with args beginning with: 'a' 'b' \r\n",)
    );
    let pushed = talk_to(&port, "RQ.PUSH q \"two words\"\r\n");
    assert!(pushed.starts_with("*1\r\n$15\r\n"), "{pushed:?}");
    assert!(talk_to(&port, "RQ.POP q\r\n").ends_with("\r\n$9\r\ntwo words\r\n"));
}

#[test]
fn a_payload_that_would_forge_a_line_is_sent_in_base64() {
    let it = Fixture::start();
    it.server.client().push("default", "two words\nTASK 0000000000 BODY forged");
    let reserved = talk(&it, "RESERVE\n");
    let (_, body) = reserved.split_once(" BODY64 ").expect("the body has a space and a line break");
    assert_eq!(body, "dHdvIHdvcmRzClRBU0sgMDAwMDAwMDAwMCBCT0RZIGZvcmdlZA==\n");
}

//! Real clients that authenticate.

use std::process::Command;

use sureq_testkit::server_process::{Launch, Server};
use tempfile::TempDir;

use crate::{SUREQ, run, run_to_end, scripts};

const PASSWORD: &str = "open sesame";

/// A server with the user root, who has a password, and the user mailer, who has a token.
struct Guarded {
    server: Server,
    token: String,
    _dir: TempDir,
}

fn sureq_user(what: &str, input: &str) -> Vec<String> {
    let output = run(Command::new(SUREQ).args(["user", what]), input.as_bytes());
    String::from_utf8(output).expect("it prints text").lines().map(str::to_owned).collect()
}

fn start() -> Guarded {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (hash, token) = (sureq_user("hash", PASSWORD), sureq_user("token", ""));
    let file = dir.path().join("users.toml");
    let text = format!(
        "[[user]]\nname = \"root\"\npassword = \"{}\"\nallow.admin = [\"*\"]\n\n\
         [[user]]\nname = \"mailer\"\ntokens = [\"{}\"]\nallow.produce = [\"emails*\"]\n",
        hash[0], token[1]
    );
    std::fs::write(&file, text).expect("the file can be written");
    let launch = Launch::serve(SUREQ, &dir.path().join("data"));
    let server = launch.args(["--text-user", "root", "--users"]).args([file]).start();
    Guarded { server, token: token[0].clone(), _dir: dir }
}

#[test]
fn redis_cli_authenticates() {
    let it = start();
    let port = it.server.resp.port().to_string();
    let ask = |who: &[&str], line: &str| {
        let mut command = Command::new("redis-cli");
        let output =
            run_to_end(command.args(["-p", &port, "--no-auth-warning"]).args(who).args(line.split(' ')), b"");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
    };
    assert_eq!(ask(&["--user", "root", "--pass", PASSWORD], "ACL WHOAMI"), "root");
    assert_eq!(ask(&["-3", "--user", "root", "--pass", PASSWORD], "PING"), "PONG");
    assert_eq!(ask(&["--user", "mailer", "--pass", &it.token], "ACL WHOAMI"), "mailer");
    assert_eq!(ask(&["-a", &it.token], "ACL WHOAMI"), "mailer");
    assert!(ask(&[], "PING").starts_with("NOAUTH"));
    assert!(ask(&["--user", "root", "--pass", "wrong"], "PING").contains("WRONGPASS"));
    assert!(ask(&["-a", &it.token], "RQ.POP emails").starts_with("NOPERM"));
}

#[test]
fn redis_py_authenticates() {
    let it = start();
    let (host, port) = (it.server.resp.ip().to_string(), it.server.resp.port().to_string());
    let output = scripts::python("redis_py_users.py", &[&host, &port, PASSWORD, &it.token]);
    assert_eq!(output.lines().count(), 11, "{output}");
}

//! TLS: a server is trusted if its certificate is signed by the authority in the URL, and servers check clients in
//! the same way.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{answer, open, push, until, wait_for};
use sureq_core::Reply;
use sureq_home_api::Home as _;
use sureq_redis::{RedisHome, Target};
use sureq_testkit::process::{PATIENCE, Process, free_port};
use sureq_testkit::redis_server::RedisServer;

/// A certificate authority, and certificates of a server and of a client.
struct Papers {
    dir: tempfile::TempDir,
}

impl Papers {
    fn new() -> Self {
        let papers = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        papers.openssl(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        );
        for name in ["server", "client"] {
            papers.openssl(&format!(
                "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ));
            std::fs::write(
                papers.path(&format!("{name}.ext")),
                "subjectAltName=IP:127.0.0.1,DNS:localhost\n",
            )
            .expect("there is room for a file");
            papers.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem"
            ));
        }
        papers
    }

    fn openssl(&self, words: &str) {
        let mut made =
            Process::start(Command::new("openssl").args(words.split(' ')).current_dir(self.dir.path()));
        assert_eq!(made.exit_code(PATIENCE), 0, "{made}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A server that accepts only TLS, besides its Unix socket.
    fn serve(&self, port: u16, auth_clients: &str) -> RedisServer {
        let (cert, key, ca) = (self.text("server.pem"), self.text("server.key"), self.text("ca.pem"));
        let port = port.to_string();
        let options = [
            ["--tls-port", &port],
            ["--tls-cert-file", &cert],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &ca],
            ["--tls-auth-clients", auth_clients],
        ];
        RedisServer::start_with(Path::new("redis-server"), &options.concat())
    }
}

fn refused(url: &str) -> String {
    RedisHome::open(Target::parse(url).expect("a URL")).expect_err("it must not be trusted").to_string()
}

#[test]
fn a_server_is_trusted_if_the_authority_in_the_url_signed_its_certificate() {
    let (papers, port) = (Papers::new(), free_port());
    let _server = papers.serve(port, "no");
    let url = format!("rediss://127.0.0.1:{port}");
    let home = open(&format!("{url}?ca={}", papers.text("ca.pem")));
    // Messages arrive over TLS, too.
    let ticket = wait_for(&home, b"q");
    until("it waits", || home.waiters() == 1);
    assert!(matches!(push(&home, b"q", b"x"), Reply::Pushed(_)));
    assert_eq!(answer(&ticket).tasks[0].body, b"x");
    home.close();
    // The certificate is not signed by an authority that this machine trusts.
    let why = refused(&url);
    assert!(why.contains("certificate"), "{why}");
    let other = Papers::new();
    let why = refused(&format!("{url}?ca={}", other.text("ca.pem")));
    assert!(why.contains("certificate"), "{why}");
}

#[test]
fn a_client_certificate_is_sent_to_a_server_that_requires_one() {
    let (papers, port) = (Papers::new(), free_port());
    let _server = papers.serve(port, "yes");
    let url = format!("rediss://127.0.0.1:{port}?ca={}", papers.text("ca.pem"));
    let known = format!("{url}&cert={}&key={}", papers.text("client.pem"), papers.text("client.key"));
    let home = open(&known);
    assert!(matches!(push(&home, b"q", b"x"), Reply::Pushed(_)));
    home.close();
    refused(&url);
}

//! The commands that Redis executes, as they happen.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sureq_testkit::redis_server::RedisServer;

use super::PATIENCE;

/// Receives all commands.
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    pub fn new(server: &RedisServer) -> Self {
        let mut socket = UnixStream::connect(server.socket()).expect("Redis listens");
        socket.write_all(b"MONITOR\r\n").expect("it is sent");
        let mut monitor = Self(BufReader::new(socket));
        assert_eq!(monitor.next(Instant::now() + PATIENCE).as_deref(), Some("+OK"));
        monitor
    }

    /// The next line, or `None` after the deadline.
    fn next(&mut self, until: Instant) -> Option<String> {
        let mut line = String::new();
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.0.get_ref().set_read_timeout(Some(left)).expect("it is not zero");
        match self.0.read_line(&mut line) {
            Ok(0) => panic!("Redis has closed the connection"),
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until a client has sent this word.
    pub fn wait_for(&mut self, word: &str) {
        let until = Instant::now() + PATIENCE;
        let quoted = format!("\"{word}\"");
        loop {
            let line = self.next(until).unwrap_or_else(|| panic!("no client sent {word}"));
            if line.contains(&quoted) && !is_of_script(&line) {
                return;
            }
        }
    }

    /// The number of words in the commands of the largest script so far, not counting pushes.
    pub fn most_words_of_a_script(self, server: &RedisServer) -> usize {
        self.most_of_a_script(server, |line| line.matches("\" \"").count() + 1)
    }

    /// How often the script that calls a command most often has called it.
    pub fn most_calls_of_a_script(self, server: &RedisServer, command: &str) -> usize {
        let called = format!(" lua] \"{command}\"");
        self.most_of_a_script(server, |line| usize::from(line.contains(&called)))
    }

    /// The most that a script so far did, as its commands are weighed.
    fn most_of_a_script(mut self, server: &RedisServer, weigh: impl Fn(&str) -> usize) -> usize {
        let mark = format!("mark {}", fastrand::u64(..));
        redis::cmd("ECHO").arg(&mark).exec(&mut server.connect()).expect("it answers");
        let (mut most, mut own, until) = (0, 0, Instant::now() + PATIENCE);
        loop {
            let line = self.next(until).expect("the mark arrives");
            if is_of_script(&line) {
                own += weigh(&line);
            } else if line.contains(&mark) {
                return most.max(own);
            } else {
                most = most.max(own);
                own = 0;
            }
        }
    }

    /// All commands that clients send within this time, except the pings that check for silent connections.
    pub fn sent_within(mut self, time: Duration) -> Vec<String> {
        let until = Instant::now() + time;
        let mut lines = Vec::new();
        while let Some(line) = self.next(until) {
            if !is_of_script(&line) && !line.ends_with("\"PING\"") {
                lines.push(line);
            }
        }
        lines
    }
}

fn is_of_script(line: &str) -> bool {
    line.contains(" lua] ")
}

//! The transcripts in the documents are correct: all of them are run against the real binary.
//!
//! Ids, receipts, uuids and incarnations differ from run to run. Each of them in a transcript matches any value at
//! its first use, and the same value at later ones. `…` at the end of a line matches any rest of that line, and on a
//! line of its own any number of lines.

#[path = "documents/tree.rs"]
#[expect(dead_code, reason = "shared with the other checks of documents")]
mod tree;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process_group};
use sureq_testkit::process::{PATIENCE, free_port};
use sureq_testkit::server_process::Launch;

const SUREQ: &str = env!("CARGO_BIN_EXE_sureq");

/// The blocks of this language in a document.
fn blocks(file: &str, language: &str) -> Vec<String> {
    let text = tree::read(file);
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|block| block.split_once("```").expect("the block ends").0.to_owned()).collect()
}

/// Runs all transcripts of a document, one after the other in one shell; returns the ids that occurred.
fn play(file: &str) -> Ids {
    play_after("", file)
}

/// The same in a shell that has run other commands before.
fn play_after(prelude: &str, file: &str) -> Ids {
    let ports = [free_port(), free_port()];
    let here =
        |text: &str| text.replace("7379", &ports[0].to_string()).replace("12000", &ports[1].to_string());
    let dir = tempfile::tempdir().expect("a temporary directory");
    symlink(SUREQ, dir.path().join("sureq")).expect("a link to the binary");
    let mut shell = Shell::start(dir.path(), ports);
    let mut ids = Ids::default();
    shell.say(&here(prelude), prelude.matches("sureq serve").count() * 3);
    for transcript in blocks(file, "console") {
        for step in transcript.strip_prefix("$ ").expect("a transcript begins with a command").split("\n$ ") {
            let mut lines = step.lines().map(here);
            let mut command = lines.next().expect("a step begins with its command");
            while command.ends_with('\\') {
                command = format!("{command}\n{}", lines.next().expect("a command continues"));
            }
            let expected: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
            let certain = expected.iter().filter(|line| *line != "…").count();
            let said = shell.say(&ids.fill(&command), certain);
            ids.compare_all(&command, &said, &expected);
        }
    }
    ids
}

/// The documents whose transcripts are run below. A test checks that none is missing.
const PLAYED: [&str; 6] = [
    "README.md",
    "docs/operate/backup-and-repair.md",
    "docs/operate/module.md",
    "docs/reference/command-line.md",
    "docs/reference/notifications.md",
    "docs/start/tutorial.md",
];

#[test]
fn every_document_with_transcripts_is_played() {
    let documents = tree::documents().into_iter();
    let with_transcripts: Vec<String> =
        documents.filter(|file| !blocks(file, "console").is_empty()).collect();
    assert_eq!(with_transcripts, PLAYED);
}

#[test]
fn the_readme_transcripts_run() {
    let ids = play(PLAYED[0]);
    assert!(ids.0.len() >= 4, "the transcripts have too few ids");
}

#[test]
fn the_transcripts_of_backup_and_repair_run() {
    play(PLAYED[1]);
}

/// With a sureq server instead of Redis: the module's conformance tests show that it gives the same replies.
#[test]
fn the_transcripts_of_the_module_run() {
    play_after("redis-cli() { command redis-cli -p 7379 \"$@\"; }; sureq serve &", PLAYED[2]);
}

#[test]
fn the_transcripts_of_the_command_line_run() {
    let ids = play(PLAYED[3]);
    assert!(ids.0.len() >= 4, "the transcripts have too few ids");
}

#[test]
fn the_transcripts_of_notifications_run() {
    let ids = play_after("sureq serve &", PLAYED[4]);
    assert_eq!(ids.0.len(), 2, "each task is reported when it is finished");
}

#[test]
fn the_transcripts_of_the_tutorial_run() {
    let ids = play(PLAYED[5]);
    let transcripts = blocks(PLAYED[5], "console").concat();
    assert!(
        transcripts.contains("kill -9") && ids.0.len() >= 4,
        "the transcripts must kill a server and show ids"
    );
}

#[test]
fn the_text_protocol_dialogue_is_correct() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::serve(SUREQ, &dir.path().join("data")).start();
    let mut client = server.text_client();
    let mut ids = Ids::default();
    let dialogues = blocks("docs/reference/text-protocol.md", "dialogue");
    assert!(!dialogues.is_empty(), "the document has no dialogue");
    for line in dialogues.iter().flat_map(|dialogue| dialogue.lines()) {
        match line.split_at_checked(2) {
            Some(("> ", said)) => {
                let said = ids.fill(&said.replace('␠', " "));
                client.send_raw(format!("{said}\n").as_bytes()).expect("the server reads");
            }
            Some(("< ", expected)) => ids.compare(&client.line(), &expected.replace('␠', " ")),
            _ => panic!("neither sent nor received: {line:?}"),
        }
    }
    client.end();
    assert!(client.is_closed(), "everything the server says is in the dialogue");
}

/// The values of a document's ids in this run.
#[derive(Default)]
struct Ids(BTreeMap<String, String>);

impl Ids {
    /// Replaces the document's ids by those of this run.
    fn fill(&self, text: &str) -> String {
        // In reverse order: a receipt begins with an id, and comes after it.
        self.0.iter().rev().fold(text.to_owned(), |text, (shown, real)| text.replace(shown, real))
    }

    /// Checks the output of a command against the document's, line by line.
    fn compare_all(&mut self, command: &str, said: &[String], expected: &[String]) {
        let mut said = said.iter().peekable();
        let mut expected = expected.iter().peekable();
        while let Some(line) = expected.next() {
            if line == "…" {
                // Up to the line that begins like the next one of the document.
                let begins = |line: &str| line.split_whitespace().next().map(str::to_owned);
                let next = expected.peek().and_then(|next| begins(next));
                while said.next_if(|said| next.is_none() || begins(said) != next).is_some() {}
            } else {
                let said = said.next().unwrap_or_else(|| panic!("{command}: nothing instead of {line:?}"));
                self.compare(said, line);
            }
        }
        let rest: Vec<&String> = said.collect();
        assert!(rest.is_empty(), "{command}: also said {rest:#?}");
    }

    /// Checks a line against the document's, word by word.
    fn compare(&mut self, said: &str, expected: &str) {
        let (mut said_words, mut expected_words) = (words(said), words(expected));
        if expected_words.last() == Some(&"…") {
            expected_words.pop();
            said_words.truncate(expected_words.len());
        }
        assert_eq!(said_words.len(), expected_words.len(), "{said:?} instead of {expected:?}");
        for (said_word, expected_word) in said_words.into_iter().zip(expected_words) {
            if is_id(expected_word) && is_id(said_word) {
                let known = self.0.entry(expected_word.to_owned()).or_insert_with(|| said_word.to_owned());
                assert_eq!(said_word, known, "{said:?} instead of {expected:?}");
            } else if !(is_heap(expected_word) && is_heap(said_word)) {
                assert_eq!(said_word, expected_word, "{said:?} instead of {expected:?}");
            }
        }
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split([' ', '"', ',']).collect()
}

/// An id in either form, a receipt, a uuid or an incarnation.
fn is_id(word: &str) -> bool {
    let is_uuid = word.len() == 32 && word.chars().all(|c| c.is_ascii_hexdigit());
    let is_incarnation = word.len() == 13 && word.chars().all(|c| c.is_ascii_digit());
    if is_uuid || is_incarnation {
        return true;
    }
    // A receipt continues with a delivery and an incarnation.
    let id = word.split_once('@').map_or(word, |(id, _)| id);
    let is_long = id.split_once('-').is_some_and(|(ms, seq)| {
        ms.len() == 13 && ms.chars().chain(seq.chars()).all(|c| c.is_ascii_digit()) && !seq.is_empty()
    });
    let is_short = word.len() == 10 && word.chars().all(|c| c.is_ascii_alphanumeric());
    is_long || is_short && word.chars().any(|c| c.is_ascii_uppercase())
}

/// The memory in the reply to STATS.
fn is_heap(word: &str) -> bool {
    word.strip_suffix('m').is_some_and(|number| number.parse::<f64>().is_ok())
}

/// A shell that runs one command at a time, and its server.
struct Shell {
    child: Child,
    lines: Receiver<String>,
}

/// Printed by the shell after each command.
const DONE: &str = "-- done --";

impl Shell {
    fn start(dir: &Path, [resp, text]: [u16; 2]) -> Self {
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell.current_dir(dir).process_group(0).env("PATH", path);
        shell.env("SUREQ_RESP", format!("127.0.0.1:{resp}")).env("SUREQ_TEXT", format!("127.0.0.1:{text}"));
        shell.env("SUREQ_HOME", format!("sureq://127.0.0.1:{resp}"));
        // As at a terminal: redis-cli prints types and numbers there.
        shell.env("FAKETTY", "1");
        let mut child = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("bash is installed");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            // It ends with the shell, or with the test.
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// Runs a command; returns its output when it is done and has printed `count` lines. A server in the background
    /// prints when it is ready.
    fn say(&mut self, command: &str, count: usize) -> Vec<String> {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{command}\necho '{DONE}'").expect("bash reads its input");
        let (mut said, mut done) = (Vec::new(), false);
        while !done || said.len() < count {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("{command}: only {said:#?} of {count} lines"));
            if line == DONE { done = true } else { said.push(line) }
        }
        said.retain(|line| !line.is_empty());
        said
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

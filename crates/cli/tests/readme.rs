//! What the documents show is what happens: their transcripts are played against the real binary.
//!
//! Ids differ from run to run. An id in a transcript stands for whatever id comes in its place, and for the same one
//! wherever it is used again.

use std::collections::BTreeMap;
use std::fs;
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|block| block.split_once("```").expect("the block ends").0.to_owned()).collect()
}

/// Plays all transcripts of a document, one after the other in one shell; answers the ids that came up.
fn play(file: &str) -> Ids {
    let ports = [free_port(), free_port()];
    let here =
        |text: &str| text.replace("7379", &ports[0].to_string()).replace("12000", &ports[1].to_string());
    let dir = tempfile::tempdir().expect("a temporary directory");
    symlink(SUREQ, dir.path().join("sureq")).expect("a link to the binary");
    let mut shell = Shell::start(dir.path(), ports);
    let mut ids = Ids::default();
    for transcript in blocks(file, "console") {
        for step in transcript.strip_prefix("$ ").expect("a transcript begins with a command").split("\n$ ") {
            let mut lines = step.lines().map(here);
            let mut command = lines.next().expect("a step begins with its command");
            while command.ends_with('\\') {
                command = format!("{command}\n{}", lines.next().expect("a command goes on"));
            }
            let expected: Vec<String> = lines.collect();
            let said = shell.say(&ids.fill(&command), expected.len());
            assert_eq!(said.len(), expected.len(), "{command}\n{said:#?}");
            for (said, expected) in said.iter().zip(&expected) {
                ids.compare(said, expected);
            }
        }
    }
    ids
}

#[test]
fn the_readme_transcripts_run() {
    let ids = play("README.md");
    let transcripts = blocks("README.md", "console").concat();
    assert!(transcripts.contains("kill -9") && ids.0.len() >= 4, "the transcripts have lost their point");
}

#[test]
fn the_transcripts_of_the_command_line_run() {
    let ids = play("docs/reference/command-line.md");
    assert!(ids.0.len() >= 4, "the transcripts have lost their point");
}

#[test]
fn the_text_protocol_dialogue_is_true() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::serve(SUREQ, &dir.path().join("data")).start();
    let mut client = server.text_client();
    let mut ids = Ids::default();
    let dialogues = blocks("docs/reference/text-protocol.md", "dialogue");
    assert!(!dialogues.is_empty(), "the document has lost its dialogue");
    for line in dialogues.iter().flat_map(|dialogue| dialogue.lines()) {
        match line.split_at_checked(2) {
            Some(("> ", said)) => {
                let said = ids.fill(&said.replace('␠', " "));
                client.send_raw(format!("{said}\n").as_bytes()).expect("the server reads");
            }
            Some(("< ", expected)) => ids.compare(&client.line(), &expected.replace('␠', " ")),
            _ => panic!("neither said nor heard: {line:?}"),
        }
    }
    client.end();
    assert!(client.is_closed(), "everything the server says is in the dialogue");
}

/// What each id of a document is in this run.
#[derive(Default)]
struct Ids(BTreeMap<String, String>);

impl Ids {
    /// Puts this run's ids in the place of the document's.
    fn fill(&self, text: &str) -> String {
        // The other way round: a receipt begins with an id, and comes behind it.
        self.0.iter().rev().fold(text.to_owned(), |text, (shown, real)| text.replace(shown, real))
    }

    /// Checks a line against the document's, word by word.
    fn compare(&mut self, said: &str, expected: &str) {
        let (said_words, expected_words) = (words(said), words(expected));
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
    line.split([' ', '"']).collect()
}

/// An id in either spelling, or a receipt.
fn is_id(word: &str) -> bool {
    // A receipt goes on with a delivery and an incarnation.
    let id = word.split_once('@').map_or(word, |(id, _)| id);
    let is_long = id.split_once('-').is_some_and(|(ms, seq)| {
        ms.len() == 13 && ms.chars().chain(seq.chars()).all(|c| c.is_ascii_digit()) && !seq.is_empty()
    });
    let is_short = word.len() == 10 && word.chars().all(|c| c.is_ascii_alphanumeric());
    is_long || is_short && word.chars().any(|c| c.is_ascii_uppercase())
}

/// What STATS says of memory.
fn is_heap(word: &str) -> bool {
    word.strip_suffix('m').is_some_and(|number| number.parse::<f64>().is_ok())
}

/// A shell that is told one line at a time, and its server.
struct Shell {
    child: Child,
    lines: Receiver<String>,
}

/// What the shell prints once a command is done.
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
            .expect("there is a bash");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            // It ends with the shell, or with the test.
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// Runs a command; answers its output once it is done and has printed so many lines. A server in the background
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

//! Runs a scenario in a home, and reports where their replies differ.

use std::collections::BTreeMap;
use std::fmt;

use super::captures::Captures;
use super::words::{Word, split};
use super::{Act, Expected, Scenario, Step, Value, is_text, line_bytes};
use crate::subject::{Request, Subject};

/// When the home is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarts {
    /// Where the scenario contains one.
    AsWritten,
    /// After every step without a waiting client: they must change nothing.
    Everywhere,
}

/// A difference between scenario and home.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// `file:line`
    pub place: String,
    /// The expected reply.
    pub expected: String,
    /// The actual reply.
    pub got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:\n  expected {}\n  got      {}", self.place, self.expected, self.got)
    }
}

/// The result of running a scenario.
#[derive(Debug)]
pub struct Played {
    /// The differences. After the first one nothing is certain.
    pub mismatches: Vec<Mismatch>,
    /// The scenario with the replies of the home.
    pub retold: String,
}

/// Runs a scenario to its end, also after mismatches.
pub fn play(scenario: &Scenario, subject: &mut dyn Subject, restarts: Restarts) -> Played {
    let mut stage = Stage {
        scenario,
        subject,
        captures: Captures::default(),
        waiting: BTreeMap::new(),
        mismatches: Vec::new(),
        edits: Vec::new(),
    };
    for step in &scenario.steps {
        stage.step(step);
        if restarts == Restarts::Everywhere && stage.waiting.is_empty() {
            stage.subject.restart();
        }
    }
    stage.look_for_answers(scenario.lines.len(), "");
    Played { mismatches: stage.mismatches, retold: retold(&scenario.lines, stage.edits) }
}

struct Stage<'s> {
    scenario: &'s Scenario,
    subject: &'s mut dyn Subject,
    captures: Captures,
    /// The number of missing replies per connection.
    waiting: BTreeMap<String, usize>,
    mismatches: Vec<Mismatch>,
    edits: Vec<Edit>,
}

/// Lines to be replaced; inserts before `first` if `end` equals it.
struct Edit {
    first: usize,
    end: usize,
    text: String,
}

impl Stage<'_> {
    fn step(&mut self, step: &Step) {
        if let Act::Answer { conn, expected } = &step.act {
            return self.answer(conn, expected);
        }
        self.look_for_answers(step.line, "");
        match &step.act {
            Act::Ask { conn, requests, expected, waits } => {
                let sent: Result<Vec<Request>, String> =
                    requests.iter().map(|(_, text)| self.request(conn, text)).collect();
                match sent {
                    Ok(sent) => self.ask(conn, &sent, expected, *waits, requests[0].0),
                    Err(error) => self.part(step.line, "a request".to_owned(), error),
                }
            }
            Act::Pass(ms) => {
                steps(*ms).for_each(|step| self.subject.pass(step));
                self.subject.check();
            }
            Act::Leap(ms) => {
                self.subject.pass(*ms);
                self.subject.check();
            }
            Act::Jump(ms) => self.subject.jump(*ms),
            Act::Restart => {
                self.waiting.clear();
                self.subject.restart();
            }
            Act::Close(conn) => {
                self.waiting.remove(conn);
                self.subject.close(conn);
            }
            Act::Answer { .. } => {}
        }
    }

    fn ask(&mut self, conn: &str, requests: &[Request], expected: &[Expected], waits: bool, line: usize) {
        self.subject.ask(conn, requests);
        if let Some(owed) = self.waiting.get_mut(conn) {
            *owed += requests.len();
            if !expected.is_empty() {
                self.part(line, "a reply".to_owned(), "an earlier reply is still missing".to_owned());
            }
            return;
        }
        for (n, expected) in expected.iter().enumerate() {
            let Some(value) = self.subject.next_reply(conn) else {
                self.waiting.insert(conn.to_owned(), requests.len() - n);
                self.replace(expected, "...".to_owned());
                return self.part(expected.first, self.as_text(expected), "no reply".to_owned());
            };
            self.compare(expected, &value, "");
        }
        if waits {
            self.waiting.insert(conn.to_owned(), requests.len() - expected.len());
            if let Some(value) = self.subject.reply(conn) {
                let place = expected.last().map_or(line + requests.len(), |expected| expected.last + 1);
                self.owe_one_less(conn);
                let text = self.captures.render(&value);
                self.edits.push(Edit { first: place, end: place + 1, text: text.clone() });
                self.part(place, "no reply yet".to_owned(), text);
            }
        }
    }

    fn answer(&mut self, conn: &str, expected: &Expected) {
        let owed = self.waiting.contains_key(conn);
        if let Some(value) = owed.then(|| self.subject.reply(conn)).flatten() {
            self.owe_one_less(conn);
            self.compare(expected, &value, &format!("{conn}< "));
        } else {
            self.edits.push(Edit { first: expected.first, end: expected.last + 1, text: String::new() });
            self.part(expected.first, self.as_text(expected), "no reply".to_owned());
        }
    }

    fn owe_one_less(&mut self, conn: &str) {
        if let Some(owed) = self.waiting.get_mut(conn) {
            *owed -= 1;
            if *owed == 0 {
                self.waiting.remove(conn);
            }
        }
    }

    fn compare(&mut self, expected: &Expected, value: &Value, prefix: &str) {
        let mut captures = self.captures.clone();
        match expected.pattern.meet(value, &mut captures) {
            Ok(()) => self.captures = captures,
            Err(why) => {
                let text = self.captures.render(value);
                self.replace(expected, format!("{prefix}{text}"));
                let why = if why.is_empty() { why } else { format!("   ({why})") };
                self.part(expected.first, self.as_text(expected), format!("{prefix}{text}{why}"));
            }
        }
    }

    /// Only clients with an expected reply may get one.
    fn look_for_answers(&mut self, line: usize, expected: &str) {
        let waiting: Vec<String> = self.waiting.keys().cloned().collect();
        for conn in waiting {
            while self.waiting.contains_key(&conn) && self.subject.has_reply(&conn) {
                let Some(value) = self.subject.reply(&conn) else { break };
                self.owe_one_less(&conn);
                let text = format!("{conn}< {}", self.captures.render(&value));
                self.edits.push(Edit { first: line, end: line, text: text.clone() });
                self.part(line, format!("{expected}nothing for {conn}"), text);
            }
        }
    }

    fn request(&self, conn: &str, text: &str) -> Result<Request, String> {
        if is_text(conn) {
            let line = line_bytes(text)?;
            let words = line.split(|&c| c == b' ').map(|word| match word {
                [b'$', ..] => self.captures.resolve(&String::from_utf8_lossy(word)),
                word => Ok(word.to_vec()),
            });
            let words: Vec<Vec<u8>> = words.collect::<Result<_, _>>()?;
            return Ok(Request::Line(words.join(&b' ')));
        }
        let words = split(text)?.into_iter().map(|word| match word {
            Word::Bare(word) if word.starts_with('$') => self.captures.resolve(&word),
            Word::Bare(word) => Ok(word.into_bytes()),
            Word::Quoted(bytes) => Ok(bytes),
        });
        words.collect::<Result<_, _>>().map(Request::Words)
    }

    fn as_text(&self, expected: &Expected) -> String {
        let lines = self.scenario.lines[expected.first..=expected.last].iter().map(|line| line.trim());
        lines.collect::<Vec<_>>().join(" ")
    }

    fn part(&mut self, line: usize, expected: String, got: String) {
        let place = format!("{}:{}", self.scenario.path.display(), line + 1);
        self.mismatches.push(Mismatch { place, expected, got });
    }

    fn replace(&mut self, expected: &Expected, text: String) {
        self.edits.push(Edit { first: expected.first, end: expected.last + 1, text });
    }
}

/// The file with the actual replies.
fn retold(lines: &[String], mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| (edit.first, edit.end));
    let mut text = String::new();
    let mut at = 0;
    let mut push = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    for edit in &edits {
        lines[at.min(edit.first)..edit.first].iter().for_each(|line| push(line));
        if !edit.text.is_empty() {
            push(&edit.text);
        }
        at = at.max(edit.end);
    }
    lines[at.min(lines.len())..].iter().for_each(|line| push(line));
    text
}

/// Steps in which time passes, short enough that events in one of them keep their order.
fn steps(ms: u64) -> impl Iterator<Item = u64> {
    let step = (ms / 500).max(50);
    let whole = ms / step;
    (0..whole).map(move |_| step).chain((!ms.is_multiple_of(step)).then_some(ms % step))
}

#[cfg(test)]
mod tests {
    #[test]
    fn steps_add_up_to_the_whole_time() {
        for ms in [0, 1, 49, 50, 51, 2_000, 86_400_001] {
            assert_eq!(super::steps(ms).sum::<u64>(), ms);
            assert!(super::steps(ms).count() <= 501);
        }
    }
}

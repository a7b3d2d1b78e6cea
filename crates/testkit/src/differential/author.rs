//! Executes steps in the core and records its replies as a scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sureq_core::id::Claim;

use super::draw::Scope;
use super::{Act, Name, Step, Word};
use crate::scenario::{Value, Watch, quote};
use crate::subject::core::CORE;
use crate::subject::{Request, Subject};

/// The connection that looks at all queues after time has passed.
const LOOKER: usize = 9;

/// How long a home may use its last reading of the wall clock.
const WALL_MS: u64 = 60;

/// The meaning of a token in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Id,
    Receipt,
    Worker,
}

/// A token from a reply, and the queue that the request named.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) name: Name,
    pub(super) kind: Kind,
    pub(super) queue: Option<Vec<u8>>,
}

/// The core, and the scenario so far.
pub(super) struct Author {
    scope: Scope,
    core: Box<dyn Subject>,
    text: String,
    commands: usize,
    /// In the order of their first use.
    seen: Vec<Seen>,
    names: BTreeMap<Vec<u8>, Name>,
    texts: BTreeMap<Name, Vec<u8>>,
    /// The connections in use, and those of them that wait.
    conns: BTreeSet<usize>,
    waiting: BTreeSet<usize>,
}

impl Author {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            core: (CORE.open)(Watch::default()),
            text: "# Random commands\n".to_owned(),
            commands: 0,
            seen: Vec::new(),
            names: BTreeMap::new(),
            texts: BTreeMap::new(),
            conns: BTreeSet::new(),
            waiting: BTreeSet::new(),
        }
    }

    pub(super) fn text(self) -> String {
        self.text
    }

    /// The number of executed commands.
    pub(super) const fn commands(&self) -> usize {
        self.commands
    }

    pub(super) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    pub(super) fn waits(&self, conn: usize) -> bool {
        self.waiting.contains(&conn)
    }

    pub(super) fn perform(&mut self, step: &Step) {
        match &step.act {
            // After steps were removed, a connection may wait that did not wait originally; its requests are skipped.
            Act::Ask { conn, requests } if !self.waits(*conn) => self.ask(step.number, *conn, requests),
            Act::Drop { conn, queue, config } if !self.waits(*conn) => {
                let drop = ["DEL", queue].map(|word| Word::Text(word.as_bytes().to_vec())).to_vec();
                self.ask(step.number, *conn, &[drop, config.clone()]);
            }
            Act::Ask { .. } | Act::Drop { .. } => {}
            Act::Begin { configs } => self.ask(step.number, LOOKER, configs),
            Act::Pass { ms, queues } => self.pass(step.number, *ms, queues),
            Act::Jump { ms, queues } => {
                self.line(&format!("jump {ms}ms"));
                self.core.jump(*ms);
                // A home need not read the wall clock more often.
                self.pass(step.number, WALL_MS, queues);
            }
            Act::Restart => {
                // The order in which a home closes its connections is not specified.
                for conn in self.conns.clone() {
                    self.close(conn);
                    self.tell_answers(step.number);
                }
                self.line("restart");
                self.core.restart();
            }
            Act::Close(conn) => self.close(*conn),
        }
        self.tell_answers(step.number);
    }

    fn pass(&mut self, step: usize, ms: u64, queues: &[String]) {
        self.line(&format!("leap {ms}ms"));
        self.core.pass(ms);
        self.tell_answers(step);
        let look = |queue: &String| {
            let words = ["RQ.CANCEL", queue, "NAME", "nobody"];
            words.map(|word| Word::Text(word.as_bytes().to_vec())).to_vec()
        };
        let looks: Vec<Vec<Word>> = queues.iter().map(look).collect();
        self.ask(step, LOOKER, &looks);
    }

    /// Records the replies to connections that waited.
    fn tell_answers(&mut self, step: usize) {
        for conn in self.waiting.clone() {
            if let Some(value) = self.core.reply(&format!("c{conn}")) {
                self.waiting.remove(&conn);
                let reply = self.as_text(&value, step, None);
                self.line(&format!("c{conn}< {reply}"));
            }
        }
    }

    fn close(&mut self, conn: usize) {
        if self.conns.remove(&conn) {
            self.line(&format!("close c{conn}"));
            self.waiting.remove(&conn);
            self.core.close(&format!("c{conn}"));
        }
    }

    fn ask(&mut self, step: usize, conn: usize, requests: &[Vec<Word>]) {
        let name = format!("c{conn}");
        self.commands += requests.len();
        self.conns.insert(conn);
        let mut sent = Vec::new();
        for request in requests {
            let words: Vec<String> = request.iter().map(|word| self.written(word)).collect();
            self.line(&format!("{name}> {}", words.join(" ")));
            sent.push(Request::Words(request.iter().map(|word| self.meant(word)).collect()));
        }
        self.core.ask(&name, &sent);
        for request in requests {
            let Some(mut value) = self.core.reply(&name) else {
                self.waiting.insert(conn);
                return self.line("...");
            };
            self.hide(request, &mut value);
            let queue = match request.get(1) {
                Some(Word::Text(queue)) => Some(queue.clone()),
                _ => None,
            };
            let reply = self.as_text(&value, step, queue.as_deref());
            self.line(&reply);
        }
    }

    /// Masks the values that a home may choose.
    fn hide(&self, request: &[Word], value: &mut Value) {
        let is = |at: usize, text: &str| matches!(request.get(at), Some(Word::Text(word)) if word == text.as_bytes());
        if is(2, "DEAD") {
            hide_deaths(value);
        } else if !self.scope.keeps_queues && (is(0, "DEL") || is(0, "EXISTS")) {
            *value = anything();
        }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A word of a request as written in the scenario.
    fn written(&self, word: &Word) -> String {
        match word {
            Word::Seen(name) if self.texts.contains_key(name) => written(*name),
            word => quote(&self.meant(word)),
        }
    }

    fn meant(&self, word: &Word) -> Vec<u8> {
        match word {
            Word::Text(text) => text.clone(),
            // The step that produced it was removed.
            Word::Seen(name) => self.texts.get(name).cloned().unwrap_or_else(|| b"1-1".to_vec()),
        }
    }

    /// A reply as written in the scenario, with names for ids. A new id gets a name.
    fn as_text(&mut self, value: &Value, step: usize, queue: Option<&[u8]>) -> String {
        match value {
            Value::Array(items) => {
                let mut text = String::from("[");
                for (n, item) in items.iter().enumerate() {
                    let text_of_item = match n.checked_sub(1).map(|before| &items[before]) {
                        Some(Value::Bulk(name)) if name == b"why" => prose(item),
                        Some(Value::Bulk(name)) if name == b"died" => "_".to_owned(),
                        // The numbers of connections differ.
                        Some(Value::Bulk(name)) if name == b"holder" && is_connection(item) => "_".to_owned(),
                        // A queue without tasks, settings and pause may be forgotten with its counters.
                        Some(Value::Bulk(name))
                            if !self.scope.keeps_queues && (name == b"pushed" || name == b"finished") =>
                        {
                            "_".to_owned()
                        }
                        // A restart may reset the rates.
                        Some(Value::Bulk(name)) if name.ends_with(b"_per_second") => "_".to_owned(),
                        _ => self.as_text(item, step, queue),
                    };
                    // Writing to a `String` does not fail.
                    let _ = write!(text, "{}{text_of_item}", if n == 0 { "" } else { " " });
                }
                text + "]"
            }
            Value::Bulk(bytes) => match (self.names.get(bytes), kind_of(bytes)) {
                (Some(name), _) => written(*name),
                (None, Some(kind)) => written(self.see(bytes, kind, step, queue)),
                (None, None) => value.to_string(),
            },
            other => other.to_string(),
        }
    }

    fn see(&mut self, bytes: &[u8], kind: Kind, step: usize, queue: Option<&[u8]>) -> Name {
        let place = self.seen.iter().rev().take_while(|seen| seen.name.step == step).count();
        let name = Name { step, place };
        self.names.insert(bytes.to_vec(), name);
        self.texts.insert(name, bytes.to_vec());
        self.seen.push(Seen { name, kind, queue: queue.map(<[u8]>::to_vec) });
        name
    }
}

fn written(name: Name) -> String {
    format!("$s{}_{}", name.step, name.place)
}

/// The wildcard of scenarios.
fn anything() -> Value {
    Value::Line(b"_".to_vec())
}

fn is_connection(holder: &Value) -> bool {
    matches!(holder, Value::Bulk(name) if name.starts_with(b"connection "))
}

/// Masks the times of death, which are when a lapse was due or when the home noticed it; and everything if two are
/// equal, since their order is not specified.
fn hide_deaths(rows: &mut Value) {
    let Value::Array(dead) = rows else { return };
    let died_at = |row: &mut Value| match row {
        Value::Array(fields) => fields.get_mut(2).map(|field| std::mem::replace(field, anything())),
        _ => None,
    };
    let times: Vec<Option<Value>> = dead.iter_mut().map(died_at).collect();
    if times.windows(2).any(|pair| pair[0] == pair[1]) {
        *rows = anything();
    }
}

/// The explanation of a task's state; masked if it contains times, ids or connections.
fn prose(value: &Value) -> String {
    let Value::Bulk(bytes) = value else { return value.to_string() };
    let has_long_number = bytes.split(|c| !c.is_ascii_digit()).any(|digits| digits.len() > 10);
    if has_long_number || bytes.windows(11).any(|part| part == b"connection ") {
        "_".to_owned()
    } else {
        value.to_string()
    }
}

fn kind_of(bytes: &[u8]) -> Option<Kind> {
    if bytes.starts_with(b"w") && bytes.contains(&b'#') {
        return Some(Kind::Worker);
    }
    let claim = Claim::parse(bytes).filter(|claim| claim.id().ms() > 1_000_000_000_000)?;
    Some(if matches!(claim, Claim::Id(_)) { Kind::Id } else { Kind::Receipt })
}

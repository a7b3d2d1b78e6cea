//! Draws the next step from a seed. Each seed has its own few queues, commands and times.
//!
//! Retry delays contain a random part that each home derives from the task id, and ids differ between homes. So a
//! seed either allows only two tries, with a backoff of one millisecond, which leaves no room for chance; or it has
//! no leases that can lapse, and every failure sets its delay.

use fastrand::Rng;

use super::author::{Author, Kind, Seen};
use super::{Act, Difference, Word};
use crate::manual_clock::ManualClock;
use crate::scenario::Need;
use crate::subject::Candidate;

/// The properties of a home that are compared.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(super) struct Scope {
    /// Commands that span queues: workers and dead-letter queues.
    pub(super) together: bool,
    /// Virtual time.
    pub(super) time: bool,
    /// The opposites of [`Difference`].
    pub(super) restarts: bool,
    pub(super) conns: bool,
    pub(super) line: bool,
    pub(super) keeps_queues: bool,
}

impl Scope {
    pub(super) fn of(candidate: &Candidate, differences: &[Difference]) -> Self {
        let is_alike = |difference| !differences.contains(&difference);
        Self {
            together: (candidate.can)(Need::Together),
            time: (candidate.can)(Need::Time),
            restarts: is_alike(Difference::Restarts),
            conns: is_alike(Difference::Connections),
            line: is_alike(Difference::Line),
            keeps_queues: is_alike(Difference::Keys),
        }
    }
}

const CONNS: usize = 3;
const GRAVE: &str = "grave";
const WORKERS: [&str; 2] = ["w1", "w2"];
/// The Redis home loses the leases of its connections if it sends no heartbeat for 30 s.
const PASS_MS_MAX: u64 = 20_000;

const TIMES_MS: [u64; 8] = [1, 10, 50, 100, 1_000, 3_000, 10_000, 60_000];

/// The commands and their weights, which each seed varies.
const COMMANDS: [(&str, u32); 30] = [
    ("push", 8),
    ("add", 8),
    ("pop", 12),
    ("block", 3),
    ("ack", 6),
    ("return", 5),
    ("fail", 4),
    ("extend", 3),
    ("recover", 2),
    ("cancel-id", 2),
    ("cancel-name", 1),
    ("cancel-payload", 1),
    ("bury", 2),
    ("revive", 2),
    ("delete", 1),
    ("explain", 2),
    ("inspect", 3),
    ("info", 2),
    ("config", 2),
    ("pause", 1),
    ("resume", 2),
    ("purge", 1),
    ("drop", 1),
    ("exists", 1),
    ("worker-start", 2),
    ("worker-beat", 2),
    ("worker-queue", 1),
    ("worker-end", 1),
    ("worker-list", 1),
    ("nonsense", 1),
];

pub(super) struct Draw {
    rng: Rng,
    scope: Scope,
    /// The last one is the dead-letter queue of the first. Nothing is pushed to it, and none of its tasks is delayed:
    /// the order of tasks that arrive there by different ways in one step of time is not specified.
    queues: Vec<String>,
    payloads: Vec<Vec<u8>>,
    weights: Vec<u32>,
    batch_max: usize,
    many: usize,
    /// One in this many steps lets time pass.
    pass_every: usize,
    /// Whether leases can lapse and workers can be lost; tasks then have two tries.
    loses: bool,
    /// Whether the home is restarted; otherwise its wall clock is set.
    restarts: bool,
    has_begun: bool,
}

impl Draw {
    pub(super) fn new(seed: u64, scope: Scope) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut queues: Vec<String> = (0..rng.usize(1..=4)).map(|n| format!("q{n}")).collect();
        queues.push(GRAVE.to_owned());
        let payloads = (0..rng.usize(1..=6)).map(|n| payload(&mut rng, n)).collect();
        // Each seed omits some commands and prefers others.
        let mut weight = |(kind, often): &(&str, u32)| match rng.u32(0..4) {
            0 if !matches!(*kind, "push" | "pop") => 0,
            1 => often * 4,
            _ => *often,
        };
        let weights = COMMANDS.iter().map(&mut weight).collect();
        let batch_max = [1, 4, 12][rng.usize(..3)];
        let many = [3, 10, 60][rng.usize(..3)];
        let pass_every = [3, 10, 30][rng.usize(..3)];
        let loses = scope.time && rng.usize(..3) > 0;
        // After a restart, homes differ in how they treat a wall clock that was set forward.
        let restarts = scope.restarts && rng.bool();
        Self {
            rng,
            scope,
            queues,
            payloads,
            weights,
            batch_max,
            many,
            pass_every,
            loses,
            restarts,
            has_begun: false,
        }
    }

    /// The settings that every queue starts with.
    fn first_config(&self, queue: &str) -> Vec<Word> {
        line(&format!("RQ.CONFIG {queue}{}", if self.loses { " TRIES 2 BACKOFF 1" } else { "" }))
    }

    pub(super) fn act(&mut self, author: &Author) -> Act {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Act::Begin {
                configs: self.queues.iter().map(|queue| self.first_config(queue)).collect(),
            };
        }
        if self.restarts && self.rng.usize(..150) == 0 {
            return Act::Restart;
        }
        let conn = self.rng.usize(..CONNS);
        if self.rng.usize(..60) == 0 {
            return Act::Close(conn);
        }
        if self.scope.time && self.rng.usize(..self.pass_every) == 0 {
            return match self.rng.usize(..40) {
                0 if !self.restarts => {
                    let ms = self.rng.i64(2_000..100_000);
                    Act::Jump { ms: if self.rng.bool() { ms } else { -ms }, queues: self.queues.clone() }
                }
                _ => {
                    let ms = (self.time_ms() * self.rng.u64(1..=2)).min(PASS_MS_MAX);
                    self.pass(ms)
                }
            };
        }
        let Some(conn) = (0..CONNS).map(|n| (conn + n) % CONNS).find(|&conn| !author.waits(conn)) else {
            return Act::Close(conn);
        };
        let mut requests = Vec::new();
        // A client that waits may be served between two commands of a pipeline, or after both.
        let batch_max = if has_waiter(author) { 1 } else { self.batch_max };
        for _ in 0..self.rng.usize(1..=batch_max) {
            let kind = self.kind(author);
            if kind == "drop" {
                let queue = self.queue();
                return Act::Drop { conn, config: self.first_config(&queue), queue };
            }
            requests.push(self.request(kind, author));
            if kind == "block" {
                break;
            }
        }
        Act::Ask { conn, requests }
    }

    /// Shows the final state, before and after more time has passed.
    pub(super) fn last_acts(&self) -> Vec<Act> {
        let look = || Act::Ask { conn: CONNS, requests: self.looks() };
        let mut acts = vec![look()];
        if self.scope.time {
            acts.extend([self.pass(PASS_MS_MAX), look()]);
        }
        acts
    }

    fn pass(&self, ms: u64) -> Act {
        Act::Pass { ms, queues: self.queues.clone() }
    }

    fn looks(&self) -> Vec<Vec<Word>> {
        let mut looks = Vec::new();
        for queue in &self.queues {
            let ask = |line: String| line.split(' ').map(word).collect::<Vec<_>>();
            looks.push(ask(format!("RQ.INSPECT {queue} 0 1000")));
            looks.push(ask(format!("RQ.INSPECT {queue} DEAD 0 1000")));
            if self.scope.time {
                looks.push(ask(format!("RQ.INSPECT {queue} PENDING 0 1000")));
                looks.push(ask(format!("RQ.INSPECT {queue} DELAYED 0 1000")));
                looks.push(ask(format!("RQ.INFO {queue}")));
            }
        }
        looks
    }

    /// Draws a command that can be compared.
    fn kind(&mut self, author: &Author) -> &'static str {
        loop {
            let kind = COMMANDS[self.weighted()].0;
            let is_of_workers = kind.starts_with("worker");
            let is_timed = matches!(kind, "explain" | "info" | "recover" | "fail");
            let is_lease = kind == "extend" && !self.loses;
            if kind == "block" && !self.scope.line && has_waiter(author) {
                continue;
            }
            if !(is_of_workers && !(self.scope.together && self.loses)
                || is_timed && !self.scope.time
                || is_lease)
            {
                return kind;
            }
        }
    }

    fn weighted(&mut self) -> usize {
        let mut left = self.rng.u32(..self.weights.iter().sum::<u32>());
        let place = self.weights.iter().position(|&weight| {
            let is_it = left < weight;
            left = left.saturating_sub(weight);
            is_it
        });
        place.unwrap_or_default()
    }

    fn request(&mut self, kind: &str, author: &Author) -> Vec<Word> {
        let queue = self.queue();
        match kind {
            "push" => {
                let count = if self.one_in(10) { self.many } else { self.rng.usize(1..=3) };
                let payloads = (0..count).map(|_| self.payload());
                let payloads: Vec<Word> = payloads.collect();
                [line(&format!("RQ.PUSH {queue}")), payloads].concat()
            }
            "add" => self.add(&queue),
            "pop" => self.pop(author, ""),
            // With a time limit, the home would decide whether a task that becomes due in the same step comes first.
            "block" => self.pop(author, "BLOCK 0"),
            "ack" | "bury" | "delete" | "revive" => {
                let verb = kind.to_ascii_uppercase();
                if kind == "revive" && self.one_in(3) {
                    return line(&format!("RQ.REVIVE {queue} ALL"));
                }
                let (queue, first) = self.task(author, kind != "delete" && kind != "revive");
                let mut request = [line(&format!("RQ.{verb} {queue}")), vec![first]].concat();
                while self.one_in(3) {
                    request.push(self.task(author, kind != "delete" && kind != "revive").1);
                }
                request
            }
            "return" => {
                let (queue, task) = self.task(author, true);
                let mut request = [line(&format!("RQ.RETURN {queue}")), vec![task]].concat();
                if self.scope.time && queue != GRAVE && self.one_in(3) {
                    request.extend(line(&format!("DELAY {}", self.time_ms())));
                } else if self.one_in(3) {
                    request.extend(line(["FRONT", "BACK"][self.rng.usize(..2)]));
                }
                request
            }
            "fail" => {
                let (queue, task) = self.task(author, true);
                let mut request = [line(&format!("RQ.RETURN {queue}")), vec![task]].concat();
                if queue == GRAVE {
                    return request;
                }
                if !self.loses || self.one_in(4) {
                    request.extend(line(&format!("DELAY {}", self.time_ms())));
                }
                request.extend(line(if self.one_in(5) { "FAILED why DEAD" } else { "FAILED because" }));
                request
            }
            "extend" => {
                let (queue, task) = self.task(author, true);
                let ms = word(&self.time_ms().to_string());
                [line(&format!("RQ.EXTEND {queue}")), vec![task, ms]].concat()
            }
            "recover" => line(&format!("RQ.RECOVER {queue} {} {}", self.rng.u32(0..4), self.elapsed_ms())),
            "cancel-id" => {
                let (queue, task) = self.task(author, false);
                [line(&format!("RQ.CANCEL {queue} ID")), vec![task]].concat()
            }
            "cancel-name" => line(&format!("RQ.CANCEL {queue} NAME n{}", self.rng.u32(..4))),
            "cancel-payload" => [line(&format!("RQ.CANCEL {queue} PAYLOAD")), vec![self.payload()]].concat(),
            "explain" => {
                let (queue, task) = self.task(author, true);
                [line(&format!("RQ.EXPLAIN {queue}")), vec![task]].concat()
            }
            "inspect" => {
                let views: &[&str] =
                    if self.scope.time { &["", "PENDING", "DELAYED", "DEAD"] } else { &["", "DEAD"] };
                let view = views[self.rng.usize(..views.len())];
                if view == "DEAD" {
                    return line(&format!("RQ.INSPECT {queue} DEAD 0 1000"));
                }
                let (start, count) = (self.rng.i32(-5..6), self.rng.u32(0..8));
                line(&format!("RQ.INSPECT {queue} {view} {start} {count}"))
            }
            "info" => line(&format!("RQ.INFO {queue}")),
            "config" => self.config(&queue),
            "pause" => line(&format!("RQ.PAUSE {queue}")),
            "resume" => line(&format!("RQ.RESUME {queue}")),
            "purge" => {
                line(&format!("RQ.PURGE {queue} {}", ["", "READY", "DELAYED", "DEAD"][self.rng.usize(..4)]))
            }
            "exists" => line(&format!("EXISTS {queue}")),
            "worker-start" => {
                let name = WORKERS[self.rng.usize(..WORKERS.len())];
                line(&format!("RQ.WORKER START {name} TTL {}", self.time_ms() * 10))
            }
            "worker-beat" => [line("RQ.WORKER BEAT"), vec![self.worker(author)]].concat(),
            "worker-queue" => {
                let verb = ["WORK", "REST"][self.rng.usize(..2)];
                [line(&format!("RQ.WORKER {verb}")), vec![self.worker(author), word(&queue)]].concat()
            }
            "worker-end" if self.one_in(2) => {
                line(&format!("RQ.WORKER FAIL {}", WORKERS[self.rng.usize(..WORKERS.len())]))
            }
            "worker-end" => [line("RQ.WORKER STOP"), vec![self.worker(author)]].concat(),
            "worker-list" => line("RQ.WORKER LIST"),
            _ => self.nonsense(&queue),
        }
    }

    fn add(&mut self, queue: &str) -> Vec<Word> {
        let mut request = [line(&format!("RQ.ADD {queue}")), vec![self.payload()]].concat();
        if self.one_in(3) {
            request.extend(line(&if self.one_in(3) {
                "UNIQUE".to_owned()
            } else {
                format!("NAME n{}", self.rng.u32(..4))
            }));
        }
        if self.scope.time && self.one_in(2) {
            let at = ManualClock::START_MS + self.rng.u64(..200_000);
            request.extend(line(&if self.one_in(4) {
                format!("AT {at}")
            } else {
                format!("DELAY {}", self.time_ms())
            }));
        }
        let tries_max = if self.loses { 2 } else { 5 };
        for (option, least, most) in [("PRIORITY", -3, 3), ("TRIES", 1, tries_max), ("TTL", 1, 20_000)] {
            if self.one_in(5) && (self.scope.time || option != "TTL") {
                request.extend(line(&format!("{option} {}", self.rng.i32(least..=most))));
            }
        }
        request
    }

    fn pop(&mut self, author: &Author, block: &str) -> Vec<Word> {
        let mut request = line("RQ.POP");
        if self.one_in(3) {
            let count = if self.one_in(8) { self.many } else { self.rng.usize(0..5) };
            request.extend(line(&format!("COUNT {count}")));
        }
        request.extend(line(block));
        if self.loses && self.one_in(2) {
            request.extend(line(&format!("LEASE {}", self.time_ms())));
        }
        match self.rng.usize(..6) {
            0 if self.scope.conns => request.push(word("CONN")),
            // On Redis, a waiting worker behind others does not notice at once that it has ended.
            1 if self.scope.together && self.loses && (block.is_empty() || !has_waiter(author)) => {
                request.extend([word("WORKER"), self.worker(author)]);
            }
            _ => {}
        }
        if self.scope.time && self.one_in(5) {
            request.push(word("META"));
        }
        for _ in 0..self.rng.usize(1..=self.queues.len().min(3)) {
            // The home decides whether a client that waits for dead tasks is served before the next command of a
            // pipeline.
            let queue = if block.is_empty() { self.source() } else { self.queue() };
            request.push(word(&queue));
        }
        request
    }

    fn config(&mut self, queue: &str) -> Vec<Word> {
        let mut request = line(&format!("RQ.CONFIG {queue}"));
        for _ in 0..self.rng.usize(0..3) {
            let ms = self.time_ms();
            let small = self.rng.u32(0..6);
            let option = match self.rng.usize(..10) {
                0 if self.loses => format!("LEASE {ms}"),
                1 if self.loses => format!("TRIES {}", 1 + small % 2),
                1 => format!("TRIES {small}"),
                2 if !self.loses => format!("BACKOFF {ms}"),
                3 if self.scope.time => format!("TTL {}", ms * 3),
                4 => format!("EXPIRED {}", ["delete", "dead"][self.rng.usize(..2)]),
                5 => format!("MAX-LENGTH {}", small * 4),
                6 => format!("MAX-BYTES {}", small * 100),
                7 => format!("OVERFLOW {}", ["refuse", "drop-oldest"][self.rng.usize(..2)]),
                8 => format!("MAX-LEASED {small}"),
                9 if self.scope.together && queue == self.queues[0] => {
                    request.push(word("DEAD-LETTER"));
                    request.push(word(if self.one_in(4) { "" } else { GRAVE }));
                    continue;
                }
                _ => continue,
            };
            request.extend(line(&option));
        }
        request
    }

    /// Invalid or useless commands.
    fn nonsense(&mut self, queue: &str) -> Vec<Word> {
        line(&match self.rng.usize(..9) {
            0 => format!("RQ.ACK {queue} nonsense"),
            1 => format!("RQ.POP COUNT -1 {queue}"),
            2 => format!("RQ.RETURN {queue} 1-1"),
            3 => format!("RQ.EXTEND {queue} 1-1 0"),
            4 => format!("RQ.CONFIG {queue} TRIES -1"),
            5 => format!("RQ.ADD {queue} x TRIES 0"),
            6 => format!("RQ.CONFIG {queue} MAX-LENGTH 0 MAX-BYTES 0 MAX-LEASED 0"),
            7 => "RQ.PUSH".to_owned(),
            _ => format!("RQ.REVIVE {queue} 1-1"),
        })
    }

    /// Any queue except the dead-letter queue.
    fn queue(&mut self) -> String {
        self.queues[self.rng.usize(..self.queues.len() - 1)].clone()
    }

    /// Any queue.
    fn source(&mut self) -> String {
        self.queues[self.rng.usize(..self.queues.len())].clone()
    }

    fn payload(&mut self) -> Word {
        Word::Text(self.payloads[self.rng.usize(..self.payloads.len())].clone())
    }

    fn time_ms(&mut self) -> u64 {
        TIMES_MS[self.rng.usize(..TIMES_MS.len())]
    }

    fn elapsed_ms(&mut self) -> u64 {
        if self.one_in(2) { 0 } else { self.time_ms() }
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.rng.usize(..n) == 0
    }

    /// A task, and the queue that it is probably in; usually a recently used one.
    fn task(&mut self, author: &Author, by_receipt: bool) -> (String, Word) {
        let is_fit = |seen: &&Seen| match seen.kind {
            Kind::Id => true,
            Kind::Receipt => by_receipt,
            Kind::Worker => false,
        };
        let queue = self.queue();
        match self.one_of(author, is_fit) {
            None => (queue, word("1-1")),
            Some(seen) => {
                let known = seen.queue.and_then(|queue| String::from_utf8(queue).ok());
                let known = known.filter(|known| self.queues.contains(known));
                (known.filter(|_| !self.one_in(6)).unwrap_or(queue), Word::Seen(seen.name))
            }
        }
    }

    fn worker(&mut self, author: &Author) -> Word {
        let worker = self.one_of(author, |seen| seen.kind == Kind::Worker);
        worker.map_or_else(|| word("w1#1"), |seen| Word::Seen(seen.name))
    }

    fn one_of(&mut self, author: &Author, is_fit: impl Fn(&&Seen) -> bool) -> Option<Seen> {
        let fit: Vec<&Seen> = author.seen().iter().rev().filter(is_fit).take(200).collect();
        let among = if self.one_in(5) { fit.len() } else { fit.len().min(10) };
        if among == 0 { None } else { Some(fit[self.rng.usize(..among)].clone()) }
    }
}

fn has_waiter(author: &Author) -> bool {
    (0..CONNS).any(|conn| author.waits(conn))
}

fn payload(rng: &mut Rng, n: usize) -> Vec<u8> {
    match rng.usize(..5) {
        0 => Vec::new(),
        1 => (0..rng.usize(1..40)).map(|_| rng.u8(..)).collect(),
        2 => vec![b'a' + n as u8; rng.usize(1..60)],
        _ => format!("payload-{n}").into_bytes(),
    }
}

/// The words of a line.
fn line(text: &str) -> Vec<Word> {
    text.split_ascii_whitespace().map(word).collect()
}

fn word(text: &str) -> Word {
    Word::Text(text.as_bytes().to_vec())
}

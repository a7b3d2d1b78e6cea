//! Producers and workers on a home, by its URL, that record what they ask and are told; whatever happened to the home meanwhile,
//! their history must be legal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sureq::Home;
use sureq::seam::Body;
use sureq_core::command::{AckScope, Block, Command, IdForm, LeaseAsk, Pop, TaskRefs};
use sureq_core::reply::TaskView;
use sureq_core::{Refusal, Replies, Reply};
use sureq_history::{Delivery, Findings, Outcome, SharedHistory, Time, payload};

use crate::patience::until;

/// How workers ask for tasks.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// How many at once.
    pub count: u32,
    /// How long they wait.
    pub block: Option<Block>,
    /// How long what they take is theirs.
    pub lease_ms: u64,
}

/// Producers and workers of some queues.
pub struct HomeLoad {
    url: String,
    queues: Vec<Vec<u8>>,
    asking: Asking,
    history: SharedHistory,
    is_over: AtomicBool,
}

/// Says that it is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl HomeLoad {
    /// On these queues of a home.
    pub fn new(url: &str, queues: &[&[u8]], asking: Asking) -> Self {
        Self {
            url: url.to_owned(),
            queues: queues.iter().map(|queue| queue.to_vec()).collect(),
            asking,
            history: SharedHistory::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// So many producers and workers each are busy while something happens.
    pub fn run(&self, pairs: usize, happens: impl FnOnce()) {
        std::thread::scope(|scope| {
            for _ in 0..pairs {
                scope.spawn(|| self.produce());
                scope.spawn(|| self.work());
            }
            // Also if it panics: nobody is to wait for them then.
            let _over = Over(&self.is_over);
            happens();
        });
    }

    /// Waits until so many more pushes are confirmed.
    pub fn until_confirmed(&self, more: u64) {
        let confirmed = || self.history.lock().counts().confirmed;
        let before = confirmed();
        until("pushes are confirmed", || confirmed() > before + more);
    }

    /// Finishes what is left, and checks the history.
    ///
    /// # Panics
    ///
    /// If it is not legal, or too short to tell.
    pub fn finish(&self) {
        let home = self.open();
        for queue in &self.queues {
            until("all are done", || {
                while self.work_once(&home, queue) {}
                is_empty(&home, queue)
            });
        }
        close(&home);
        let history = self.history.lock();
        println!("{history}");
        assert_eq!(history.findings(0), Findings::default(), "{history}");
        assert!(history.counts().confirmed > 100, "too few were pushed to tell: {history}");
    }

    fn open(&self) -> Home {
        sureq::open(&self.url).expect("the home is there")
    }

    fn produce(&self) {
        let home = self.open();
        while !self.is_over.load(Ordering::Acquire) {
            let push = self.history.lock().invoke_push(1);
            let queue = &self.queues[push.first as usize % self.queues.len()];
            let payloads = [payload::encode(push.first)];
            let outcome = match &ask(&home, &Command::Push { queue, payloads: &[&payloads[0]] }).list[0] {
                Reply::Pushed(_) => Outcome::Ok,
                no => outcome_of(no),
            };
            self.history.lock().complete_push(push, outcome);
        }
        close(&home);
    }

    fn work(&self) {
        let home = self.open();
        while !self.is_over.load(Ordering::Acquire) {
            for queue in &self.queues {
                self.work_once(&home, queue);
            }
        }
        close(&home);
    }

    /// Takes and finishes some; answers whether there may be more.
    fn work_once(&self, home: &Home, queue: &[u8]) -> bool {
        let Asking { count, block, lease_ms } = self.asking;
        let lease = LeaseAsk { ms: Some(lease_ms), ..LeaseAsk::NONE };
        let asked = Time::now();
        let taken = ask(home, &Command::Pop(Pop { block, lease, ..Pop::plain(&[queue], count) }));
        match &taken.list[0] {
            Reply::Tasks(_) | Reply::TimedOut => {}
            // Whatever was taken comes back, and is found by whoever asks again.
            no => _ = outcome_of(no),
        }
        let (received, lease) = (Time::now(), Some(Duration::from_millis(lease_ms)));
        for task in &taken.tasks {
            let number = payload::decode(task.body.as_ref());
            self.history.lock().deliver(&Delivery { number, id: None, asked, received, lease });
        }
        for task in &taken.tasks {
            self.finish_one(home, queue, task);
        }
        !taken.tasks.is_empty()
    }

    /// Half of them by their receipts, half by their ids.
    fn finish_one(&self, home: &Home, queue: &[u8], task: &TaskView<Body>) {
        let Some(number) = payload::decode(task.body.as_ref()) else { return };
        let name = if number.is_multiple_of(2) { task.id.to_string() } else { task.receipt().to_string() };
        let tasks = TaskRefs { list: &[name.as_bytes()], form: IdForm::Long };
        self.history.lock().invoke_finish(number);
        let ack = Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed };
        let replies = ask(home, &ack);
        let (at, mut history) = (Time::now(), self.history.lock());
        match &replies.list[0] {
            Reply::Acked(span) if span.len() == 1 => history.complete_finish(number, Outcome::Ok, at),
            Reply::Acked(_) => history.deny_finish(number, at),
            no => history.complete_finish(number, outcome_of(no), at),
        }
    }
}

/// What came of a command that was not answered as asked. A home that is harmed may say nothing else.
fn outcome_of(no: &Reply) -> Outcome {
    match no {
        Reply::Refused(Refusal::Unknown { .. }) => Outcome::Unknown,
        Reply::Refused(Refusal::Unavailable { .. }) => Outcome::Failed,
        other => panic!("{other:?}"),
    }
}

fn is_empty(home: &Home, queue: &[u8]) -> bool {
    match &ask(home, &Command::Info { queue }).list[0] {
        Reply::Info(info) => info.ready + info.leased + info.delayed == 0,
        no => {
            outcome_of(no);
            false
        }
    }
}

/// What a home answers to one command, once it is there.
fn ask(home: &Home, command: &Command<'_>) -> Replies<Body> {
    let mut replies = Replies::default();
    let executed = home.execute(std::slice::from_ref(command), &mut replies);
    home.wait(executed.position);
    if let Some(ticket) = executed.ticket {
        replies.append(ticket.wait().replies);
    }
    replies
}

fn close(home: &Home) {
    home.close().expect("it is closed in good order");
}

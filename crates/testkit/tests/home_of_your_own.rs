//! A home of your own works with the library, the worker and the server: this one logs commands and forwards them.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use sureq::home_api::command::{ConnId, Pop};
use sureq::home_api::{
    Broken, Command, Home, Listener, Now, Payload, Position, Receipt, Replies, Status, Submitted,
};
use sureq::{Outcome, Worker};
use sureq_core::Reply;
use sureq_testkit::local_server::LocalServer;

/// Forwards to a home in this process, and records a line for each command.
#[derive(Clone, Debug)]
struct Logging {
    inner: Arc<dyn Home>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Logging {
    fn in_front_of(home: &sureq::Home) -> Self {
        Self { inner: Arc::clone(home.api()), lines: Arc::default() }
    }

    fn log(&self, line: String) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn has(&self, part: &str) -> bool {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|line| line.contains(part))
    }
}

// The defaults of the other methods suit a home in this process.
impl Home for Logging {
    fn submit(&self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Submitted {
        for command in commands {
            self.log(format!("{command:?}"));
        }
        self.inner.submit(commands, replies)
    }

    fn commit(&self) -> Position {
        self.inner.commit()
    }

    fn durable(&self) -> Position {
        self.inner.durable()
    }

    fn wake_at(&self, position: Position, waker: &Waker) {
        self.inner.wake_at(position, waker);
    }

    fn failure(&self) -> Option<Broken> {
        self.inner.failure()
    }

    fn requeue(&self, queue: &[u8], receipts: &[Receipt]) {
        self.log(format!("requeue {} of {}", receipts.len(), queue.escape_ascii()));
        self.inner.requeue(queue, receipts);
    }

    fn close_conn(&self, conn: ConnId) {
        self.inner.close_conn(conn);
    }

    fn dismiss_waiters(&self) {
        self.inner.dismiss_waiters();
    }

    fn waiters(&self) -> usize {
        self.inner.waiters()
    }

    fn listen(&self) -> Listener {
        self.inner.listen()
    }

    fn now(&self) -> Now {
        self.inner.now()
    }

    fn warnings(&self) -> &[String] {
        self.inner.warnings()
    }

    fn status(&self) -> Option<Status> {
        self.inner.status()
    }

    fn charge(&self, bytes: usize, before: usize) {
        self.inner.charge(bytes, before);
    }

    fn is_in_process(&self) -> bool {
        self.inner.is_in_process()
    }

    fn close(&self) -> Result<(), Broken> {
        self.log("close".to_owned());
        self.inner.close()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_of_your_own_serves_a_worker_of_the_library() {
    let logging = Logging::in_front_of(&sureq::open("mem:").expect("a home in memory opens"));
    let home = sureq::Home::from_api(logging.clone());
    home.queue("emails").push("hello").await.expect("the push succeeds");
    let worker = Worker::new(&home).work("emails", |payload: String| async move {
        assert_eq!(payload, "hello");
        Outcome::Done
    });
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    while handle.status().is_none_or(|status| status.tally.done == 0) {
        tokio::task::yield_now().await;
    }
    handle.stop();
    running.await.expect("it does not panic").expect("the stop is orderly");
    home.close_async().await.expect("the stop is orderly");
    assert!(logging.has("Push") && logging.has("Ack") && logging.has("close"));
}

#[test]
fn a_home_of_your_own_is_served_to_other_programs() {
    let logging = Logging::in_front_of(&sureq::open("mem:").expect("a home in memory opens"));
    let server = LocalServer::start(&sureq::Home::from_api(logging.clone()));
    let client = sureq::open(&server.url()).expect("the server listens");
    let mut replies = Replies::default();
    let push = Command::Push { queue: b"emails", payloads: &[b"hello"] };
    let pop = Command::Pop(Pop::plain(&[b"emails"], 1));
    let _ = client.api().execute(&[push, pop], &mut replies);
    assert!(matches!(replies.list[..], [Reply::Pushed(_), Reply::Tasks(_)]), "{:?}", replies.list);
    assert_eq!(replies.tasks[0].body, b"hello");
    client.close().expect("the stop is orderly");
    server.stop();
    assert!(logging.has("Push") && logging.has("Pop"));
}

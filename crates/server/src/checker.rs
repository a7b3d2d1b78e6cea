//! Checks passwords, away from the network threads: each check takes tens of milliseconds and megabytes of memory.
//! Only a few checks run at a time and the others wait in a queue per IP address. The queues take turns, so a flood
//! of guesses from one address delays a login from another by at most one check.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sureq_core::limits::{PASSWORDS_WAITING_MAX, WRONG_PASSWORD_MS};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::users::{Claim, User, Users};

/// The maximum number of checks that run at the same time. Each uses a core, and up to `PASSWORD_MEMORY_BYTES_MAX`.
const AT_ONCE_MAX: usize = 4;

/// The threads that check passwords. They end when this value is dropped.
pub(crate) struct Checker {
    queue: Arc<PasswordQueue>,
}

/// The passwords to check, and the condition variable that signals a new one.
#[derive(Default)]
struct PasswordQueue {
    waiting: Mutex<WaitingChecks>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingChecks {
    /// One queue of jobs per address. The first job of the first queue is next; its queue then moves behind the
    /// others.
    by_peer: VecDeque<(IpAddr, VecDeque<Job>)>,
    len: usize,
    is_closed: bool,
}

/// One password to check.
struct Job {
    claim: Claim,
    answer: oneshot::Sender<Option<Arc<User>>>,
}

impl Checker {
    /// Starts the threads, unless there are no users.
    pub(crate) fn start(users: &Arc<Users>) -> io::Result<Self> {
        let line = Arc::new(PasswordQueue::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if users.is_empty() { 0 } else { (cores / 2).clamp(1, AT_ONCE_MAX) };
        for n in 0..threads {
            let (line, users) = (Arc::clone(&line), Arc::clone(users));
            let thread = std::thread::Builder::new().name(format!("sureq-auth-{n}"));
            thread.spawn(move || line.work(|claim| users.by_password(claim)))?;
        }
        Ok(Self { queue: line })
    }

    /// Queues a password for checking. Returns `None` if too many checks wait already.
    pub(crate) fn check(&self, peer: IpAddr, claim: Claim) -> Option<Login> {
        let (answer, verdict) = oneshot::channel();
        self.queue.join(peer, Job { claim, answer }).then_some(Login { state: LoginState::Asked(verdict) })
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}

impl PasswordQueue {
    fn lock(&self) -> MutexGuard<'_, WaitingChecks> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, peer: IpAddr, job: Job) -> bool {
        let mut waiting = self.lock();
        let is_joined = waiting.join(peer, job);
        drop(waiting);
        self.changed.notify_one();
        is_joined
    }

    /// Checks one password after the other, until the queue is closed.
    fn work(&self, check: impl Fn(&Claim) -> Option<Arc<User>>) {
        while let Some(job) = self.next() {
            // Don't check the password of a client that has disconnected in the meantime.
            if !job.answer.is_closed() {
                let _ = job.answer.send(check(&job.claim));
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some(job) = waiting.next() {
                return Some(job);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl WaitingChecks {
    fn join(&mut self, peer: IpAddr, job: Job) -> bool {
        if self.len >= PASSWORDS_WAITING_MAX {
            return false;
        }
        self.len += 1;
        match self.by_peer.iter_mut().find(|(other, _)| *other == peer) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.by_peer.push_back((peer, VecDeque::from([job]))),
        }
        true
    }

    fn next(&mut self) -> Option<Job> {
        let (peer, mut jobs) = self.by_peer.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.by_peer.push_back((peer, jobs));
        }
        self.len -= 1;
        job
    }
}

/// A login that is in progress. A failure is reported only after a delay, which slows down guessing.
pub(crate) struct Login {
    state: LoginState,
}

enum LoginState {
    Asked(oneshot::Receiver<Option<Arc<User>>>),
    Wrong(Pin<Box<Sleep>>),
}

impl Login {
    /// A login that is known to fail without a check.
    pub(crate) fn wrong() -> Self {
        Self { state: LoginState::Wrong(Box::pin(sleep(Duration::from_millis(WRONG_PASSWORD_MS)))) }
    }

    /// The authenticated user, or `None` if the password is wrong.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<User>>> {
        loop {
            match &mut self.state {
                LoginState::Asked(verdict) => match ready!(Pin::new(verdict).poll(cx)) {
                    Ok(Some(user)) => return Poll::Ready(Some(user)),
                    Ok(None) | Err(_) => *self = Self::wrong(),
                },
                LoginState::Wrong(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    return Poll::Ready(None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_proto::verbs::Credentials;

    fn job(name: &str) -> Job {
        let said = Credentials { user: Some(name.as_bytes()), password: b"x" };
        Job { claim: Claim::new(&said).expect("it is short"), answer: oneshot::channel().0 }
    }

    #[test]
    fn addresses_take_turns() {
        let mut waiting = WaitingChecks::default();
        for (peer, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (1, "a4"), (3, "c1"), (2, "b2")] {
            assert!(waiting.join(IpAddr::from([10, 0, 0, peer]), job(name)));
        }
        let order: Vec<String> = std::iter::from_fn(|| waiting.next())
            .map(|job| String::from_utf8_lossy(job.claim.name()).into_owned())
            .collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
        assert_eq!((waiting.len, waiting.by_peer.len()), (0, 0));
    }

    #[test]
    fn refuses_passwords_when_too_many_wait() {
        let mut waiting = WaitingChecks::default();
        let peer = IpAddr::from([127, 0, 0, 1]);
        for _ in 0..PASSWORDS_WAITING_MAX {
            assert!(waiting.join(peer, job("x")));
        }
        assert!(!waiting.join(peer, job("x")));
        assert!(waiting.next().is_some() && waiting.join(peer, job("x")));
    }
}

//! A Redis with a home of sureq in the layout of another program, and a connection for raw commands of that program.

use redis::{Connection, FromRedisValue};
use sureq_core::command::{AckScope, Block, Command, IdForm, Pop, TaskRef, TaskRefs};
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::{Home as _, Payload, Ticket};
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

use super::monitor::Monitor;
use super::{info, open, run, until};

/// The queue of all tests: each test has a server of its own.
pub const QUEUE: &[u8] = b"jobs";

pub struct Shop {
    pub home: RedisHome,
    pub raw: Connection,
    pub server: RedisServer,
    options: &'static str,
}

impl Shop {
    /// A Redis whose home has these options.
    pub fn with(options: &'static str) -> Self {
        Self::on(RedisServer::start(), options)
    }

    pub fn on(server: RedisServer, options: &'static str) -> Self {
        let (home, raw) = (open_home(&server, options), server.connect());
        Self { home, raw, server, options }
    }

    /// Another home on the same Redis.
    pub fn another(&self) -> RedisHome {
        open_home(&self.server, self.options)
    }

    /// Kills Redis with signal 9, and starts it again.
    pub fn crash(&mut self) {
        self.server.crash();
        self.raw = self.server.connect();
    }

    /// Closes the home and opens another one, which has popped nothing and therefore does not clean by itself.
    pub fn reopen(&mut self) {
        self.home.close();
        self.home = self.another();
    }

    /// Sends a command; its words are separated by spaces.
    pub fn raw<T: FromRedisValue>(&mut self, line: &str) -> T {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().expect("a line has words"));
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.raw).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The members of a set, or the elements of a list, in order.
    pub fn all(&mut self, line: &str) -> Vec<String> {
        let mut all: Vec<String> = self.raw(line);
        if line.starts_with('S') {
            all.sort();
        }
        all
    }

    pub fn execute(&self, command: Command<'_>) -> Replies<Payload> {
        run(&self.home, &command)
    }

    pub fn reply(&self, command: Command<'_>) -> Reply {
        self.execute(command).list.remove(0)
    }

    /// The text of a refusal.
    pub fn refusal(&self, command: Command<'_>) -> String {
        match self.reply(command) {
            Reply::Refused(no) => format!("{} {no}", no.code()),
            other => panic!("{other:?}"),
        }
    }

    pub fn count(&self, command: Command<'_>) -> u64 {
        match self.reply(command) {
            Reply::Count(n) => n,
            other => panic!("{other:?}"),
        }
    }

    /// Starts a waiting pop.
    pub fn wait(&self, block: Block) -> Ticket {
        wait(&self.home, block)
    }

    /// Acks the task; returns whether this call finished it.
    pub fn ack(&self, id: &str) -> bool {
        ack(&self.home, id)
    }

    /// The numbers of ready and of leased tasks.
    pub fn lengths(&self) -> (u64, u64) {
        let info = info(&self.home, QUEUE);
        (info.ready, info.leased)
    }

    /// The ids of the clients whose last or current command this is.
    pub fn clients(&mut self, command: &str) -> Vec<u64> {
        let command = format!(" cmd={command} ");
        let clients = self.raw::<String>("CLIENT LIST");
        let of = clients.lines().filter(|client| client.contains(&command));
        of.map(|client| {
            client.split([' ', '=']).nth(1).and_then(|id| id.parse().ok()).expect("a client has a number")
        })
        .collect()
    }

    /// Waits until this many pops wait, and all commands that lead to waiting were sent.
    pub fn until_waiting(&self, n: usize) {
        until("it waits", || self.home.waiters() == n);
        self.home.look();
    }

    pub fn monitor(&self) -> Monitor {
        Monitor::new(&self.server)
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.home.close();
    }
}

pub fn open_home(server: &RedisServer, options: &str) -> RedisHome {
    open(&format!("{}?{options}", server.url()))
}

/// Starts a waiting pop.
pub fn wait(home: &RedisHome, block: Block) -> Ticket {
    home.send(&[Command::Pop(Pop { block: Some(block), ..Pop::plain(&[QUEUE], 1) })])
}

/// Acks the task; returns whether this call finished it.
pub fn ack(home: &RedisHome, id: &str) -> bool {
    let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
    let ack = Command::Ack { queue: QUEUE, tasks, scope: AckScope::LeasedOrLapsed };
    match run(home, &ack).list.remove(0) {
        Reply::Acked(span) => !span.is_empty(),
        other => panic!("{other:?}"),
    }
}

pub fn task_ref(id: &str) -> TaskRef<'_> {
    TaskRef { bytes: id.as_bytes(), form: IdForm::Long }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("tests use text")
}

/// The ids and payloads of popped tasks; an id is empty if the layout assigns it later.
pub fn tasks(replies: &Replies<Payload>) -> Vec<(String, String)> {
    let (Reply::Tasks(span) | Reply::Inspected(span)) = replies.list[0] else { panic!("{:?}", replies.list) };
    let tasks = replies.tasks[span.range()].iter();
    tasks.map(|task| (text(task.foreign_id.as_deref().unwrap_or_default()), text(&task.body))).collect()
}

/// The reply to a waiting pop.
pub fn answer(ticket: Ticket) -> Result<Vec<(String, String)>, Refusal> {
    let replies = super::answer(&ticket);
    drop(ticket);
    match &replies.list[0] {
        Reply::Refused(no) => Err(no.clone()),
        Reply::TimedOut => Ok(Vec::new()),
        _ => Ok(tasks(&replies)),
    }
}

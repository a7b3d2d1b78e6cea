//! A Redis with a home of ours, a connection for raw commands, and the published crate.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};
use redis_work_queue::{Item, KeyPrefix, WorkQueue};
use sureq_core::command::{AckScope, Add, Block, Command, IdForm, LeaseAsk, NameArg, Pop, TaskRef, TaskRefs};
use sureq_core::reply::Info;
use sureq_core::{Refusal, Replies, Reply};
use sureq_redis::{RedisHome, Target, Ticket};
use sureq_testkit::redis_server::RedisServer;

/// The queue of all tests: no two share a server.
pub(crate) const QUEUE: &[u8] = b"jobs";

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Shop {
    pub(crate) home: RedisHome,
    pub(crate) raw: Connection,
    pub(crate) server: RedisServer,
}

impl Shop {
    pub(crate) fn open() -> Self {
        let server = RedisServer::start();
        let home = open_home(&server, "");
        let raw = connect(&server);
        Self { home, raw, server }
    }

    /// Ends Redis with signal 9, and starts it again.
    pub(crate) fn crash(&mut self) {
        self.server.crash();
        self.raw = connect(&self.server);
    }

    /// Closes the home and opens another, which has popped nothing and so does not clean by itself.
    pub(crate) fn reopen(&mut self) {
        self.home.close();
        self.home = open_home(&self.server, "");
    }

    /// Sends a command as it stands; words are parted by blanks.
    pub(crate) fn raw<T: FromRedisValue>(&mut self, line: &str) -> T {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().expect("a line has words"));
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.raw).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    pub(crate) fn execute(&self, command: Command<'_>) -> Replies<Vec<u8>> {
        self.home.execute(&[command]).wait().replies
    }

    pub(crate) fn reply(&self, command: Command<'_>) -> Reply {
        self.execute(command).list.remove(0)
    }

    /// The words of a refusal.
    pub(crate) fn refusal(&self, command: Command<'_>) -> String {
        match self.reply(command) {
            Reply::Refused(no) => format!("{} {no}", no.code()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn push(&self, payload: &str) -> String {
        let replies = self.execute(Command::Push { queue: QUEUE, payloads: &[payload.as_bytes()] });
        assert!(matches!(replies.list[..], [Reply::PushedSpelt(_)]), "{:?}", replies.list);
        text(&replies.spelt[0])
    }

    /// Adds an item with an id; whether it was new.
    pub(crate) fn add(&self, id: &str, payload: &str) -> bool {
        let name = Some(NameArg::Bytes(id.as_bytes()));
        let replies = self.execute(Command::Add(Add { name, ..Add::plain(QUEUE, payload.as_bytes()) }));
        let [Reply::AddedSpelt { at, added, .. }] = replies.list[..] else { panic!("{:?}", replies.list) };
        assert_eq!(text(&replies.spelt[at as usize]), id);
        added
    }

    pub(crate) fn pop(&self, count: u32, lease_ms: Option<u64>) -> Vec<(String, String)> {
        let lease = LeaseAsk { ms: lease_ms, ..LeaseAsk::NONE };
        tasks(&self.execute(Command::Pop(Pop { lease, ..Pop::plain(&[QUEUE], count) })))
    }

    pub(crate) fn pop_one(&self) -> Option<String> {
        self.pop(1, None).pop().map(|(id, _)| id)
    }

    /// A pop that waits.
    pub(crate) fn wait(&self, block: Block) -> Ticket {
        wait(&self.home, block)
    }

    /// A pop that waits for one of two queues.
    pub(crate) fn wait_for_either(&self, other: &[u8]) -> Ticket {
        let queues = [QUEUE, other];
        let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) };
        self.home.execute(&[Command::Pop(pop)])
    }

    /// Whether this completed the item.
    pub(crate) fn ack(&self, id: &str) -> bool {
        ack(&self.home, id)
    }

    /// How many are ready and how many leased.
    pub(crate) fn lengths(&self) -> (u64, u64) {
        match self.reply(Command::Info { queue: QUEUE }) {
            Reply::Info(info) => {
                let Info { ready, leased, .. } = *info;
                (ready, leased)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Both lists as they stand in Redis.
    pub(crate) fn lists(&mut self) -> (Vec<String>, Vec<String>) {
        (self.raw("LRANGE jobs:queue 0 -1"), self.raw("LRANGE jobs:processing 0 -1"))
    }

    /// The numbers of the clients that executed this last, or do.
    pub(crate) fn clients(&mut self, command: &str) -> Vec<u64> {
        let command = format!(" cmd={command} ");
        let clients = self.raw::<String>("CLIENT LIST");
        let of = clients.lines().filter(|client| client.contains(&command));
        of.map(|client| {
            client.split([' ', '=']).nth(1).and_then(|id| id.parse().ok()).expect("a client has a number")
        })
        .collect()
    }

    /// Waits until nobody blocks any more.
    pub(crate) fn until_nobody_blocks(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.raw::<String>("INFO clients").contains("blocked_clients:1") {
            assert!(Instant::now() < until, "somebody still blocks");
        }
    }

    pub(crate) fn monitor(&self) -> Monitor {
        Monitor::new(&self.server)
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.home.close();
    }
}

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("Redis listens")
}

/// A pop that waits.
pub(crate) fn wait(home: &RedisHome, block: Block) -> Ticket {
    home.execute(&[Command::Pop(Pop { block: Some(block), ..Pop::plain(&[QUEUE], 1) })])
}

/// Whether this completed the item.
pub(crate) fn ack(home: &RedisHome, id: &str) -> bool {
    let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
    let ack = Command::Ack { queue: QUEUE, tasks, scope: AckScope::LeasedOrLapsed };
    match home.execute(&[ack]).wait().replies.list.remove(0) {
        Reply::Acked(span) => !span.is_empty(),
        other => panic!("{other:?}"),
    }
}

/// Another home on the same Redis.
pub(crate) fn open_home(server: &RedisServer, options: &str) -> RedisHome {
    let url = format!("{}?layout=work-queue{options}", server.url());
    RedisHome::open(Target::parse(&url).expect("it is a URL")).expect("Redis listens")
}

pub(crate) fn task_ref(id: &str) -> TaskRef<'_> {
    TaskRef { bytes: id.as_bytes(), form: IdForm::Long }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("tests speak in text")
}

/// The ids and payloads that were popped.
pub(crate) fn tasks(replies: &Replies<Vec<u8>>) -> Vec<(String, String)> {
    let (Reply::Tasks(span) | Reply::Inspected(span)) = replies.list[0] else { panic!("{:?}", replies.list) };
    let tasks = replies.tasks[span.range()].iter();
    tasks.map(|task| (text(task.spelt.as_ref().expect("ids are spelt here")), text(&task.body))).collect()
}

/// What a pop that waited was given.
pub(crate) fn answer(ticket: Ticket) -> Result<Vec<(String, String)>, Refusal> {
    let replies = ticket.wait().replies;
    match &replies.list[0] {
        Reply::Refused(no) => Err(no.clone()),
        Reply::TimedOut => Ok(Vec::new()),
        _ => Ok(tasks(&replies)),
    }
}

/// The published crate.
pub(crate) struct Published {
    pub(crate) queue: WorkQueue,
    connection: redis_0_26::aio::MultiplexedConnection,
    runtime: tokio::runtime::Runtime,
}

impl Published {
    pub(crate) fn new(server: &RedisServer) -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("there is room for it");
        let client = redis_0_26::Client::open(server.url()).expect("it is a URL");
        let connection = runtime.block_on(client.get_multiplexed_async_connection()).expect("Redis listens");
        Self { queue: WorkQueue::new(KeyPrefix::from("jobs")), connection, runtime }
    }

    pub(crate) fn add(&mut self, item: &Item) -> bool {
        self.runtime.block_on(self.queue.add_item(&mut self.connection, item)).expect("Redis answers")
    }

    pub(crate) fn add_unique(&mut self, item: &Item) {
        self.runtime.block_on(self.queue.add_unique_item(&mut self.connection, item)).expect("Redis answers");
    }

    /// Leases for a minute; does not wait.
    pub(crate) fn lease(&mut self) -> Option<Item> {
        self.lease_within(Some(Duration::ZERO))
    }

    pub(crate) fn lease_within(&mut self, timeout: Option<Duration>) -> Option<Item> {
        let lease = self.queue.lease(&mut self.connection, timeout, Duration::from_secs(60));
        self.runtime.block_on(lease).expect("Redis answers")
    }

    pub(crate) fn complete(&mut self, id: &str) -> bool {
        let item = Item { id: id.to_owned(), data: Box::default() };
        self.runtime.block_on(self.queue.complete(&mut self.connection, &item)).expect("Redis answers")
    }

    pub(crate) fn lengths(&mut self) -> (usize, usize) {
        let ready = self.runtime.block_on(self.queue.queue_len(&mut self.connection)).expect("Redis answers");
        let leased =
            self.runtime.block_on(self.queue.processing(&mut self.connection)).expect("Redis answers");
        (ready, leased)
    }
}

/// An item of the published crate.
pub(crate) fn item(id: &str, data: &str) -> Item {
    Item { id: id.to_owned(), data: data.as_bytes().into() }
}

/// What Redis is asked, as it happens.
pub(crate) struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn new(server: &RedisServer) -> Self {
        let mut socket = UnixStream::connect(server.socket()).expect("Redis listens");
        socket.write_all(b"MONITOR\r\n").expect("it is sent");
        let mut monitor = Self(BufReader::new(socket));
        assert_eq!(monitor.next(Instant::now() + PATIENCE).as_deref(), Some("+OK"));
        monitor
    }

    /// The next line, unless it is too late.
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
    pub(crate) fn wait_for(&mut self, word: &str) {
        let until = Instant::now() + PATIENCE;
        let quoted = format!("\"{word}\"");
        loop {
            let line = self.next(until).unwrap_or_else(|| panic!("nobody sent {word}"));
            if line.contains(&quoted) && !is_of_script(&line) {
                return;
            }
        }
    }

    /// All that clients send from now on until then.
    pub(crate) fn sent_within(mut self, time: Duration) -> Vec<String> {
        let until = Instant::now() + time;
        let mut lines = Vec::new();
        while let Some(line) = self.next(until) {
            if !is_of_script(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

fn is_of_script(line: &str) -> bool {
    line.contains(" lua] ")
}

//! A Redis with a home of sureq, a connection for raw commands, and the published crate.

use std::time::{Duration, Instant};

use redis_work_queue::{Item, KeyPrefix, WorkQueue};
use sureq_core::Reply;
use sureq_core::command::{Add, Block, Command, LeaseAsk, NameArg, Pop};
use sureq_home_api::Ticket;
use sureq_testkit::redis_server::RedisServer;

pub(crate) use crate::common::PATIENCE;
pub(crate) use crate::common::shop::{QUEUE, Shop, ack, answer, task_ref, tasks, text, wait};

impl Shop {
    pub(crate) fn open() -> Self {
        Self::with("layout=work-queue")
    }

    pub(crate) fn push(&self, payload: &str) -> String {
        let replies = self.execute(Command::Push { queue: QUEUE, payloads: &[payload.as_bytes()] });
        assert!(matches!(replies.list[..], [Reply::PushedForeign(_)]), "{:?}", replies.list);
        text(replies.foreign_ids[0].as_ref().expect("it has an id"))
    }

    /// Adds an item with an id; returns whether it was new.
    pub(crate) fn add(&self, id: &str, payload: &str) -> bool {
        let name = Some(NameArg::Bytes(id.as_bytes()));
        let replies = self.execute(Command::Add(Add { name, ..Add::plain(QUEUE, payload.as_bytes()) }));
        let [Reply::AddedForeign { at, added, .. }] = replies.list[..] else { panic!("{:?}", replies.list) };
        assert_eq!(replies.foreign_ids[at as usize].as_deref(), Some(id.as_bytes()));
        added
    }

    pub(crate) fn pop(&self, count: u32, lease_ms: Option<u64>) -> Vec<(String, String)> {
        let lease = LeaseAsk { ms: lease_ms, ..LeaseAsk::NONE };
        tasks(&self.execute(Command::Pop(Pop { lease, ..Pop::plain(&[QUEUE], count) })))
    }

    pub(crate) fn pop_one(&self) -> Option<String> {
        self.pop(1, None).pop().map(|(id, _)| id)
    }

    /// Starts a waiting pop over two queues.
    pub(crate) fn wait_for_either(&self, other: &[u8]) -> Ticket {
        let queues = [QUEUE, other];
        let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) };
        self.home.send(&[Command::Pop(pop)])
    }

    /// The ids in both lists.
    pub(crate) fn lists(&mut self) -> (Vec<String>, Vec<String>) {
        (self.raw("LRANGE jobs:queue 0 -1"), self.raw("LRANGE jobs:processing 0 -1"))
    }

    /// Waits until no client blocks.
    pub(crate) fn until_nobody_blocks(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.raw::<String>("INFO clients").contains("blocked_clients:1") {
            assert!(Instant::now() < until, "a client still blocks");
        }
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

    /// Leases for a minute, without waiting.
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

/// An item for the published crate.
pub(crate) fn item(id: &str, data: &str) -> Item {
    Item { id: id.to_owned(), data: data.as_bytes().into() }
}

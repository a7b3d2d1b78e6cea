//! Behaviour of waiting pops in every foreign layout whose pushes are noticed by messages or tracking.

use std::time::{Duration, Instant};

use sureq_core::command::Block;
use sureq_home_api::Ticket;

use super::shop::{QUEUE, Shop, answer};
use super::{is_short, push};

/// The parts that differ between layouts.
pub struct Ways {
    pub wait: fn(&Shop, Block) -> Ticket,
    /// Lets a foreign client push.
    pub foreign_push: fn(&mut Shop, &str),
    /// Cuts the connections on which the home is notified.
    pub cut: fn(&mut Shop),
    /// The part of a task that a foreign client has pushed: its id or its payload.
    pub pushed: fn(&(String, String)) -> &str,
}

impl Ways {
    fn wait(&self, shop: &Shop) -> Ticket {
        let ticket = (self.wait)(shop, Block::Forever);
        shop.until_waiting(1);
        ticket
    }

    /// Starts a waiting pop, triggers an event, and expects the task that a foreign client pushes then.
    fn served_after(&self, shop: &mut Shop, what: &str, happens: impl FnOnce(&mut Shop)) {
        let ticket = self.wait(shop);
        happens(shop);
        (self.foreign_push)(shop, what);
        assert_eq!((self.pushed)(&answer(ticket).expect("tasks, or none")[0]), what);
    }

    pub fn a_push_of_either_side_wakes_at_once(&self, shop: &mut Shop) {
        let other = shop.another();
        is_short(|n| {
            let ticket = self.wait(shop);
            let since = Instant::now();
            if n % 2 == 0 {
                (self.foreign_push)(shop, &n.to_string());
            } else {
                push(&other, QUEUE, b"x");
            }
            assert_eq!(answer(ticket).expect("tasks, or none").len(), 1);
            since.elapsed()
        });
        other.close();
    }

    /// One pop times out and one is dropped: neither takes a task that is pushed later.
    pub fn give_up(&self, shop: &Shop) {
        let since = Instant::now();
        assert_eq!(answer((self.wait)(shop, Block::Millis(30))), Ok(vec![]));
        assert!(since.elapsed() >= Duration::from_millis(30));
        drop((self.wait)(shop, Block::Forever));
        shop.home.look();
    }

    /// The ticket of a waiting pop is dropped right after it got a task: the task is requeued.
    pub fn requeues_the_task_of_a_dropped_ticket(&self, shop: &Shop) {
        let mut monitor = shop.monitor();
        let ticket = (self.wait)(shop, Block::Forever);
        monitor.wait_for("pop");
        drop(ticket);
        monitor.wait_for("requeue");
        shop.home.look();
    }

    pub fn a_waiting_pop_survives_a_restart_of_redis_and_the_loss_of_scripts_and_connections(
        &self,
        shop: &mut Shop,
    ) {
        self.served_after(shop, "a", |shop| {
            shop.raw::<()>("FUNCTION FLUSH");
            shop.raw::<()>("SCRIPT FLUSH");
        });
        self.served_after(shop, "b", self.cut);
        self.served_after(shop, "c", Shop::crash);
    }
}

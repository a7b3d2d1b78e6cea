//! The receipt as a fencing token: a worker that was declared lost and wakes up late cannot overwrite the result of its
//! successor.
//!
//! A lease alone cannot prevent that, since a paused process does not know how late it is. The system that it writes to
//! can: it accepts a write only if its fence is larger than the last one of the same task. A fence orders the
//! deliveries of one task and says nothing about others, so keep it per task. In SQL, in one transaction with the
//! write, which is made only if this changes a row:
//!
//! ```sql
//! INSERT INTO fences (task, e, n) VALUES ($1, $2, $3)
//! ON CONFLICT (task) DO UPDATE SET e = $2, n = $3 WHERE (fences.e, fences.n) < ($2, $3)
//! ```
//!
//! Here maps stand for the tables. A row can be deleted when no delivery of its task can be in progress any more.

use std::collections::HashMap;
use std::time::Duration;

use sureq::{Held, Id, Task};

/// A table of accounts with their balances, and one of tasks with the fence of the last write.
#[derive(Default)]
struct Accounts {
    balances: HashMap<String, i64>,
    fences: HashMap<Id, (u64, u32)>,
}

impl Accounts {
    /// Writes a balance, unless a later delivery of the same task already has.
    fn write(&mut self, account: &str, balance: i64, task: &Task) -> bool {
        let Some(fence) = task.receipt().fence() else { return false };
        let last = self.fences.entry(task.id()).or_default();
        let is_newer = *last < fence;
        if is_newer {
            *last = fence;
            self.balances.insert(account.to_owned(), balance);
        }
        is_newer
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bookings = sureq::open("mem:")?.queue("bookings");
    bookings.push("set ann to 100").await?;
    let mut accounts = Accounts::default();
    let take = async || -> sureq::Result<Task> {
        let lease = Duration::from_millis(50);
        loop {
            if let Some(task) = bookings.pop().lease(lease).wait_forever().await? {
                return Ok(task);
            }
        }
    };

    let slow = take().await?;
    println!("the first worker has delivery {} and falls asleep", slow.delivery());
    // Its lease ends, and the task is delivered to the second worker.
    let quick = take().await?;
    println!("the second worker has delivery {}", quick.delivery());
    println!("the second worker writes: {}", accounts.write("ann", 100, &quick));
    println!("the second worker finishes: {}", quick.ack().await? == Held::Yes);
    // Another task of the same account: its fences are independent of those of the first task.
    bookings.push("set ann to 200").await?;
    let next = take().await?;
    println!("the next task, delivery {}, writes: {}", next.delivery(), accounts.write("ann", 200, &next));
    println!("the next task is finished: {}", next.ack().await? == Held::Yes);
    // The first worker wakes up and does not know that its lease has ended.
    println!("the first worker writes: {}", accounts.write("ann", 0, &slow));
    println!("the first worker finishes: {}", slow.ack().await? == Held::Yes);
    println!("ann has {}", accounts.balances["ann"]);
    Ok(())
}

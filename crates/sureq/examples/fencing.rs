//! The receipt as fencing token: a worker that was taken for dead and wakes up late cannot overwrite what its successor wrote.
//!
//! A lease alone cannot prevent that, since nobody can stop a process that does not know how late it is. What it writes to can: it
//! takes a write only if its fence is larger than the last one's. In SQL: `UPDATE accounts SET balance = $1, fence_e = $2, fence_n = $3
//! WHERE id = $4 AND (fence_e, fence_n) < ($2, $3)`. Here a map stands in for the table.

use std::collections::HashMap;
use std::time::Duration;

use sureq::{Receipt, Task};

/// A table of accounts: a balance each, and the fence of the last write.
#[derive(Default)]
struct Accounts(HashMap<String, (i64, (u64, u32))>);

impl Accounts {
    /// Writes a balance, unless somebody with a larger fence already has.
    fn write(&mut self, account: &str, balance: i64, receipt: &Receipt) -> bool {
        let Some(fence) = receipt.fence() else { return false };
        let row = self.0.entry(account.to_owned()).or_default();
        let is_newer = row.1 < fence;
        if is_newer {
            *row = (balance, fence);
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
    // Its lease runs out, and the task is handed to another one.
    let quick = take().await?;
    println!("the second worker has delivery {}", quick.delivery());
    println!("the second worker writes: {}", accounts.write("ann", 100, &quick.receipt()));
    println!("the second worker finishes: {}", quick.ack().await?);
    // The first one wakes up and knows nothing of all this.
    println!("the first worker writes: {}", accounts.write("ann", 0, &slow.receipt()));
    println!("the first worker finishes: {}", slow.ack().await?);
    println!("ann has {}", accounts.0["ann"].0);
    Ok(())
}

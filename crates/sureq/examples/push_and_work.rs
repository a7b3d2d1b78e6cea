//! Push tasks and work on them: a queue in a directory, a typed handler, retries, and a task that cannot succeed.
//!
//! `cargo run -p sureq --example push_and_work` creates the directory `sureq-data` and ends when all tasks are done.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sureq::{DeliveryNumber, Failure, Json, View, Worker};

#[derive(Debug, Deserialize, Serialize)]
struct Email {
    to: String,
    subject: String,
}

async fn send(Json(email): Json<Email>, DeliveryNumber(try_number): DeliveryNumber) -> Result<(), Failure> {
    if !email.to.contains('@') {
        return Err(Failure::dead("not an address"));
    }
    if email.to.starts_with("bob") && try_number == 1 {
        return Err(Failure::again_after("the mailbox is busy", Duration::from_millis(200)));
    }
    println!("sent {:?} to {}", email.subject, email.to);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "sureq-data".to_owned());
    let home = sureq::open(&format!("file:{dir}"))?;
    let emails = home.queue("emails");
    for to in ["ann@example.org", "bob@example.org", "nobody"] {
        let id = emails.push(Json(Email { to: to.to_owned(), subject: "hello".to_owned() })).await?;
        println!("pushed {id}");
    }

    // A real worker runs until SIGTERM or Ctrl-C, with `run`. This one ends when nothing is left to do.
    let all_done = async {
        while emails.info().await.is_ok_and(|info| info.ready + info.delayed + info.leased > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let tally = Worker::new(&home).work("emails", send).run_until(all_done).await?;
    println!("{} done, {} tries failed, {} dead", tally.done, tally.failed, tally.dead);
    for task in emails.inspect(View::Dead, 0, 10).await? {
        let reason = task.more.and_then(|more| more.reason).unwrap_or_default();
        println!(
            "dead: {}: {}",
            String::from_utf8_lossy(task.payload.as_ref()),
            String::from_utf8_lossy(&reason)
        );
    }
    Ok(())
}

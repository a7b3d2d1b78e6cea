//! Storing results: a queue stores tasks and no results. Before the task is acked, the handler stores its result
//! under the id of the task, for an hour; the producer reads it there. A handler that runs twice stores the same
//! result twice, which is harmless.
//!
//! `cargo run -p sureq --example storing_results redis://127.0.0.1:6379`. Any store with expiry would do; this example
//! uses the Redis of the queue.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sureq::{Failure, Id, Json, State, Worker};

/// Long enough for the producer to read it.
const KEPT_SECONDS: u64 = 3_600;

fn key(id: &Id) -> String {
    format!("results:{id}")
}

async fn square(Json(n): Json<i64>, id: Id, store: State<MultiplexedConnection>) -> Result<(), Failure> {
    let mut store = store.0.as_ref().clone();
    // Before the task is acked: if this fails, the task is retried.
    let () = store.set_ex(key(&id), n * n, KEPT_SECONDS).await?;
    Ok(())
}

/// Waits for the result of a task.
async fn result_of(id: &Id, store: &mut MultiplexedConnection) -> redis::RedisResult<i64> {
    loop {
        if let Some(result) = store.get(key(id)).await? {
            return Ok(result);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let mut store = redis::Client::open(&*url)?.get_multiplexed_async_connection().await?;
    let home = sureq::open(&url)?;

    let worker = Worker::new(&home).state(store.clone()).work("squares", square);
    let handle = worker.handle();
    let working = tokio::spawn(worker.run());

    let ids = home.queue("squares").push_all([Json(3), Json(12)]).await?;
    for id in &ids {
        println!("the square is {}", result_of(id, &mut store).await?);
    }
    handle.stop();
    println!("{} done", working.await??.done);
    Ok(())
}

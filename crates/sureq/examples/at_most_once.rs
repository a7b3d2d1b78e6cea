//! At-most-once delivery with `ack_first`: the task is acked before its handler runs, so that it never runs twice. If
//! the handler fails or the worker dies, the task is lost.
//!
//! Without `ack_first`, a failed handler is retried: at-least-once delivery. Run both with
//! `cargo run -p sureq --example at_most_once`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use sureq::{Failure, State, Worker, route};

/// How often the siren sounded, by mode of delivery.
#[derive(Default)]
struct Siren {
    at_least_once: AtomicU32,
    at_most_once: AtomicU32,
}

async fn careful(siren: State<Arc<Siren>>) -> Result<(), Failure> {
    let before = siren.at_least_once.fetch_add(1, SeqCst);
    if before < 2 { Err(Failure::again_now("it was sounded, and then something broke")) } else { Ok(()) }
}

async fn bold(siren: State<Arc<Siren>>) -> Result<(), Failure> {
    siren.at_most_once.fetch_add(1, SeqCst);
    Err(Failure::again_now("it was sounded, and then something broke"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let home = sureq::open("mem:")?;
    home.queue("at-least-once").push("sound it").await?;
    home.queue("at-most-once").push("sound it").await?;

    let siren = Arc::<Siren>::default();
    let worker = Worker::new(&home)
        .state(Arc::clone(&siren))
        .work("at-least-once", careful)
        .work("at-most-once", route(bold).ack_first());
    let is_empty = async |queue: &str| {
        home.queue(queue).info().await.is_ok_and(|info| info.ready + info.delayed + info.leased == 0)
    };
    let both_empty = async {
        while !(is_empty("at-least-once").await && is_empty("at-most-once").await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    worker.run_until(both_empty).await?;
    println!("at least once: sounded {} times", siren.at_least_once.load(SeqCst));
    println!("at most once: sounded {} time", siren.at_most_once.load(SeqCst));
    Ok(())
}

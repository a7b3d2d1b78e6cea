//! A worker on Redis or Valkey, without a sureq server: the same code as on a directory, with another URL.
//!
//! `cargo run -p sureq --example worker_on_redis redis://127.0.0.1:6379`. Run it twice at once to share the work.

use std::time::Duration;

use sureq::{Id, State, Token, Worker, route};
use tokio::sync::mpsc::UnboundedSender;

async fn resize(image: String, id: Id, token: Token, done: State<UnboundedSender<()>>) {
    // Long work should check the token, which fires when the lease is lost or the task is cancelled.
    if token.fired().is_none() {
        println!("{id}: resized {image}");
    }
    let _ = done.send(());
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let home = sureq::open(&url)?;
    home.warnings().iter().for_each(|warning| eprintln!("{warning}"));
    let images = home.queue("images");
    for n in 1..=5 {
        images.push(format!("image-{n}.png")).await?;
    }

    let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel::<()>();
    let worker = Worker::new(&home)
        .name(format!("resizer-{}", std::process::id()))
        .state(done)
        // If this process dies, its tasks are requeued after this time.
        .ttl(Duration::from_secs(5))
        .work("images", route(resize).concurrency(2));
    let five_are_done = async {
        for _ in 0..5 {
            is_done.recv().await;
        }
    };
    let tally = worker.run_until(five_are_done).await?;
    println!("{} done", tally.done);
    Ok(())
}

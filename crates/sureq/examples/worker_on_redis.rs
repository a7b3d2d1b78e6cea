//! A worker on your own Redis or Valkey, with no server of ours: the same lines as on a directory, and another URL.
//!
//! `cargo run -p sureq --example worker_on_redis redis://127.0.0.1:6379`. Run it twice at once: the work is shared.

use std::time::Duration;

use sureq::{Id, State, Token, Worker, route};
use tokio::sync::mpsc::UnboundedSender;

async fn resize(image: String, id: Id, token: Token, done: State<UnboundedSender<()>>) {
    // What takes long can look at the token: it says when somebody else has the task, or nobody wants it any more.
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
        // If this process dies, its tasks are somebody else's this much later.
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

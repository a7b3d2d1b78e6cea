//! A queue inside a web server. A request pushes a task and is answered when the task is on disk; a worker in the
//! same process runs the task. There is no other server, and accepted tasks survive a crash.
//!
//! `cargo run -p sureq --example embedded_in_axum`, then `curl -d hello http://127.0.0.1:3000/greetings`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use sureq::{Home, Queue, Worker};

/// Answers 202: the task is accepted and will be done later.
async fn accept(
    State(home): State<Home>,
    greeting: String,
) -> Result<(StatusCode, String), (StatusCode, String)> {
    match greetings(&home).push(greeting).await {
        Ok(id) => Ok((StatusCode::ACCEPTED, format!("{id}\n"))),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))),
    }
}

async fn count(State(home): State<Home>) -> Result<String, StatusCode> {
    let info = greetings(&home).info().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(format!("{} waiting, {} at work\n", info.ready + info.delayed, info.leased))
}

fn greetings(home: &Home) -> Queue {
    home.queue("greetings")
}

async fn greet(greeting: String) {
    println!("greeting: {greeting}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let dir = arguments.next().unwrap_or_else(|| "sureq-data".to_owned());
    // Blocks the thread while the log is read; no request is being served yet.
    let home = sureq::open(&format!("file:{dir}"))?;

    let app =
        Router::new().route("/greetings", post(accept)).route("/count", get(count)).with_state(home.clone());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });

    // Runs until SIGTERM or Ctrl-C: running handlers are awaited, and other tasks continue at the next start.
    let tally = Worker::new(&home).work("greetings", greet).run().await?;
    println!("{} done", tally.done);
    // Other threads still answer requests while this one waits for the disk.
    tokio::task::spawn_blocking(move || home.close()).await??;
    Ok(())
}

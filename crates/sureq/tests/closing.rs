//! Closing a home in async code.
#![cfg(feature = "remote")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex};

use futures_util::future::join;
use tokio::sync::mpsc;

/// A reply to HELLO with all that the client checks.
const GREETING: &[u8] = b"%1\r\n$6\r\nserver\r\n$5\r\nsureq\r\n";
const PUSHED: &[u8] = b"*1\r\n$15\r\n1601155608777-1\r\n";

/// A server that hangs with the first command: it notes that it has received it, and answers when it is released.
struct Hanging {
    address: SocketAddr,
    received: mpsc::UnboundedReceiver<()>,
    release: blocking::Sender<()>,
}

fn hanging() -> Hanging {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    let (has_received, received) = mpsc::unbounded_channel();
    let (release, released) = blocking::channel();
    let released = Arc::new(Mutex::new(released));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (has_received, released) = (has_received.clone(), Arc::clone(&released));
            std::thread::spawn(move || serve(client, &has_received, &released));
        }
    });
    Hanging { address, received, release }
}

fn serve(
    mut client: TcpStream,
    has_received: &mpsc::UnboundedSender<()>,
    released: &Mutex<blocking::Receiver<()>>,
) -> Option<()> {
    let mut room = [0; 4096];
    client.read(&mut room).ok().filter(|bytes| *bytes > 0)?;
    client.write_all(GREETING).ok()?;
    client.read(&mut room).ok().filter(|bytes| *bytes > 0)?;
    has_received.send(()).ok()?;
    released.lock().ok()?.recv().ok()?;
    client.write_all(PUSHED).ok()?;
    // Until the client closes the connection.
    while client.read(&mut room).ok()? > 0 {}
    Some(())
}

/// The only thread of the runtime has to run other tasks meanwhile: one of them brings the server back.
#[tokio::test]
async fn closing_with_a_server_that_hangs_does_not_block_the_runtime() {
    let Hanging { address, mut received, release } = hanging();
    let home = sureq::open_async(&format!("sureq://{address}")).await.expect("it greets");
    let queue = home.queue("q");
    let pushing = tokio::spawn(async move { queue.push("x").await });
    received.recv().await.expect("the server receives the command");
    // The first one is polled first.
    let release = async { release.send(()).expect("the server waits for it") };
    let (closed, ()) = join(home.close_async(), release).await;
    closed.expect("a server cannot fail the home");
    let pushed = pushing.await.expect("it does not panic");
    assert!(pushed.is_ok(), "the server was brought back only after the home had given up: {pushed:?}");
}

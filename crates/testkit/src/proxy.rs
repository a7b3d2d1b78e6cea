//! Proxies before a server: one that cuts, and one that is slow.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client.
    ToServer,
    /// To the client.
    FromServer,
}

/// Passes the first connection on until so many bytes have gone one way, and then cuts; all others without harm. Answers where
/// it listens.
///
/// # Panics
///
/// If loopback has no free port.
pub fn cutting_proxy(server: SocketAddr, cut: usize, way: Way) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let Ok(client) = client else { return };
            let server = TcpStream::connect(server).expect("the server listens");
            let cut = if n == 0 { cut } else { usize::MAX };
            let (to, from) = match way {
                Way::ToServer => (cut, usize::MAX),
                Way::FromServer => (usize::MAX, cut),
            };
            let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
            let pair = (twin(&client), twin(&server));
            std::thread::spawn(move || pass(&pair.0, &pair.1, to));
            std::thread::spawn(move || pass(&server, &client, from));
        }
    });
    address
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, mut left: usize) {
    let mut room = [0; 4096];
    while left > 0 {
        let Ok(read @ 1..) = from.read(&mut room) else { break };
        let passed = read.min(left);
        if to.write_all(&room[..passed]).is_err() {
            break;
        }
        left -= passed;
    }
    // Whichever end is gone already does not matter.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A proxy that is slow to answer, and counts round trips.
pub struct SlowProxy {
    address: SocketAddr,
    trips: Arc<AtomicUsize>,
}

impl SlowProxy {
    /// Stands before a server. What that says is passed on after so long, so that whatever a client has to say before it hears
    /// an answer is said by then.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn start(server: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let trips = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&trips);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let server = TcpStream::connect(server).expect("the server listens");
                pass_slowly(client, server, delay, &counted);
            }
        });
        Self { address, trips }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often a client said something after it had heard an answer, over all connections.
    pub fn trips(&self) -> usize {
        self.trips.load(Ordering::SeqCst)
    }
}

fn pass_slowly(client: TcpStream, server: TcpStream, delay: Duration, trips: &Arc<AtomicUsize>) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("it is open");
    }
    let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
    let (own_client, own_server) = (twin(&client), twin(&server));
    let has_heard = Arc::new(AtomicBool::new(true));
    let (said_again, trips) = (Arc::clone(&has_heard), Arc::clone(trips));
    std::thread::spawn(move || {
        pass_on(own_client, own_server, || {
            if said_again.swap(false, Ordering::SeqCst) {
                trips.fetch_add(1, Ordering::SeqCst);
            }
        });
    });
    std::thread::spawn(move || {
        pass_on(server, client, || {
            std::thread::sleep(delay);
            has_heard.store(true, Ordering::SeqCst);
        });
    });
}

/// Passes on what comes, each piece after something was done for it.
fn pass_on(mut from: TcpStream, mut to: TcpStream, before_each: impl Fn()) {
    let mut room = vec![0; 256 << 10];
    while let Ok(n @ 1..) = from.read(&mut room) {
        before_each();
        if to.write_all(&room[..n]).is_err() {
            break;
        }
    }
    // Whichever end is gone, the other one goes too.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

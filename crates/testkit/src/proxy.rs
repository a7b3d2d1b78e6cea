//! Proxies before a server: one that cuts, one that is slow.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
    proxy(server, move |n, of| Line { left: if n == 0 && of == way { cut } else { usize::MAX }, pause: None })
}

/// Passes so many bytes on at once one way, on each connection by itself, and then pauses for so long. Hardly anything waits
/// within the proxy: whoever sends notices that it is slow.
///
/// # Panics
///
/// If loopback has no free port.
pub fn slow_proxy(server: SocketAddr, way: Way, bytes: usize, pause: Duration) -> SocketAddr {
    proxy(server, move |_, of| Line { left: usize::MAX, pause: (of == way).then_some((bytes, pause)) })
}

/// One way through a proxy.
struct Line {
    /// How many bytes pass before it is cut.
    left: usize,
    /// After how many bytes it pauses, and for how long.
    pause: Option<(usize, Duration)>,
}

/// How much a slow proxy takes in that it has not passed on.
const SLOW_BUFFER_BYTES: usize = 16 << 10;

fn proxy(server: SocketAddr, line: impl Fn(usize, Way) -> Line + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    if line(0, Way::ToServer).pause.is_some() {
        let small = rustix::net::sockopt::set_socket_recv_buffer_size(&listener, SLOW_BUFFER_BYTES);
        small.expect("a buffer may be small");
    }
    std::thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let Ok(client) = client else { return };
            let server = TcpStream::connect(server).expect("the server listens");
            let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
            let pair = (twin(&client), twin(&server));
            let (to, from) = (line(n, Way::ToServer), line(n, Way::FromServer));
            std::thread::spawn(move || pass(&pair.0, &pair.1, to));
            std::thread::spawn(move || pass(&server, &client, from));
        }
    });
    address
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, Line { mut left, pause }: Line) {
    let mut room = vec![0; pause.map_or(4096, |(bytes, _)| bytes)];
    while left > 0 {
        let Ok(read @ 1..) = from.read(&mut room) else { break };
        let passed = read.min(left);
        if to.write_all(&room[..passed]).is_err() {
            break;
        }
        left -= passed;
        if let Some((_, pause)) = pause {
            // What is slow about it; nobody waits for this to happen.
            std::thread::sleep(pause);
        }
    }
    // Whichever end is gone already does not matter.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A proxy before a Redis that passes everything on, until it is told to lose the connections that hear messages: those then
/// stand, and nothing comes through any more. New connections are passed on again.
pub struct SwallowingProxy {
    /// Where it listens.
    pub address: SocketAddr,
    losses: Arc<AtomicU64>,
}

/// One connection through it.
struct Passage {
    losses: Arc<AtomicU64>,
    /// How many losses there were before it.
    born: u64,
    hears_messages: AtomicBool,
}

impl SwallowingProxy {
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let losses = Arc::<AtomicU64>::default();
        let own = Arc::clone(&losses);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let server = TcpStream::connect(server).expect("the server listens");
                let born = own.load(Ordering::Acquire);
                let passage =
                    Arc::new(Passage { losses: Arc::clone(&own), born, hears_messages: false.into() });
                let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
                let (there, back) = ((twin(&client), twin(&server)), Arc::clone(&passage));
                std::thread::spawn(move || passage.pass(&there.0, &there.1));
                std::thread::spawn(move || back.pass(&server, &client));
            }
        });
        Self { address, losses }
    }

    /// Loses all connections over which anything was subscribed to.
    pub fn swallow(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }
}

impl Passage {
    fn is_lost(&self) -> bool {
        self.hears_messages.load(Ordering::Acquire) && self.losses.load(Ordering::Acquire) > self.born
    }

    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut room = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut room) {
            let bytes = &room[..read];
            // Scripts have no such word in them.
            if bytes.windows(11).any(|word| word == b"\r\nSUBSCRIBE") {
                self.hears_messages.store(true, Ordering::Release);
            }
            if !self.is_lost() && to.write_all(bytes).is_err() {
                break;
            }
        }
        if !self.is_lost() {
            // Whichever end is gone already does not matter.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    }
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

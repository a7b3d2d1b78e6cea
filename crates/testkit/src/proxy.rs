//! A proxy before a server that cuts.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

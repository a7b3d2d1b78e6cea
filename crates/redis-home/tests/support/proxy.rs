//! A proxy before Redis that cuts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// Passes bytes on until so many have gone one way, and then cuts.
pub struct Proxy {
    pub address: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToRedis,
    FromRedis,
}

impl Proxy {
    /// One that serves one connection, then all others without harm.
    pub fn new(redis_port: u16, cut: usize, way: Way) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            for (n, client) in listener.incoming().enumerate() {
                let Ok(client) = client else { return };
                let redis = TcpStream::connect(("127.0.0.1", redis_port)).expect("Redis listens");
                let cut = if n == 0 { cut } else { usize::MAX };
                let (to, from) = match way {
                    Way::ToRedis => (cut, usize::MAX),
                    Way::FromRedis => (usize::MAX, cut),
                };
                let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
                let pair = (twin(&client), twin(&redis));
                std::thread::spawn(move || pass(&pair.0, &pair.1, to));
                std::thread::spawn(move || pass(&redis, &client, from));
            }
        });
        Self { address }
    }
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

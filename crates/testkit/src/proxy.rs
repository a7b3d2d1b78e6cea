//! A proxy before a server that cuts.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

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

//! Proxies in front of a server: one that cuts connections, one that is slow, and one with all faults of a network, on
//! demand.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer,
    /// To the client.
    FromServer,
}

/// Forwards the first connection until `cut` bytes have passed in one direction, and then cuts it; forwards all
/// others unchanged. Returns its address.
///
/// # Panics
///
/// If loopback has no free port.
pub fn cutting_proxy(server: SocketAddr, cut: usize, way: Direction) -> SocketAddr {
    proxy(server, move |n, of| Fault {
        left: if n == 0 && of == way { cut } else { usize::MAX },
        pause: None,
    })
}

/// Forwards `bytes` at a time one way, per connection, with a pause after each. Its buffers are small, so that the
/// sender notices.
///
/// # Panics
///
/// If loopback has no free port.
pub fn slow_proxy(server: SocketAddr, way: Direction, bytes: usize, pause: Duration) -> SocketAddr {
    proxy(server, move |_, of| Fault { left: usize::MAX, pause: (of == way).then_some((bytes, pause)) })
}

/// The faults of one direction of a connection.
struct Fault {
    /// The number of bytes before the cut.
    left: usize,
    /// The number of bytes between pauses, and their length.
    pause: Option<(usize, Duration)>,
}

/// The receive buffer of a slow proxy.
const SLOW_BUFFER_BYTES: usize = 16 << 10;

fn proxy(server: SocketAddr, fault_of: impl Fn(usize, Direction) -> Fault + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    if fault_of(0, Direction::ToServer).pause.is_some() {
        let small = rustix::net::sockopt::set_socket_recv_buffer_size(&listener, SLOW_BUFFER_BYTES);
        small.expect("a buffer may be small");
    }
    std::thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let Ok(client) = client else { return };
            let server = TcpStream::connect(server).expect("the server listens");
            let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
            let pair = (twin(&client), twin(&server));
            let (to, from) = (fault_of(n, Direction::ToServer), fault_of(n, Direction::FromServer));
            std::thread::spawn(move || pass(&pair.0, &pair.1, to));
            std::thread::spawn(move || pass(&server, &client, from));
        }
    });
    address
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, Fault { mut left, pause }: Fault) {
    let mut room = vec![0; pause.map_or(4096, |(bytes, _)| bytes)];
    while left > 0 {
        let Ok(read @ 1..) = from.read(&mut room) else { break };
        let passed = read.min(left);
        if to.write_all(&room[..passed]).is_err() {
            break;
        }
        left -= passed;
        if let Some((_, pause)) = pause {
            // The delay under test; no test waits for it.
            std::thread::sleep(pause);
        }
    }
    // It does not matter which end is already closed.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A proxy in front of a Redis that forwards everything, and can make subscriptions hang: their connections then stay
/// open, and no more bytes pass. New connections are forwarded again.
pub struct SwallowingProxy {
    /// The address of the proxy.
    pub address: SocketAddr,
    losses: Arc<AtomicU64>,
}

/// One connection through it.
struct Passage {
    losses: Arc<AtomicU64>,
    /// The number of earlier losses.
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

    /// Makes all connections with a subscription hang.
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
            // Scripts do not contain this word.
            if bytes.windows(11).any(|word| word == b"\r\nSUBSCRIBE") {
                self.hears_messages.store(true, Ordering::Release);
            }
            if !self.is_lost() && to.write_all(bytes).is_err() {
                break;
            }
        }
        if !self.is_lost() {
            // It does not matter which end is already closed.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    }
}

/// A proxy that delays replies, and counts round trips.
pub struct SlowProxy {
    address: SocketAddr,
    trips: Arc<AtomicUsize>,
}

impl SlowProxy {
    /// Listens in front of a server. Replies are delayed, so that a client has sent everything that it sends before a
    /// reply.
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

    /// The address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often clients sent bytes after receiving some, over all connections.
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

/// Forwards bytes, and calls `before_each` before each piece.
fn pass_on(mut from: TcpStream, mut to: TcpStream, before_each: impl Fn()) {
    let mut room = vec![0; 256 << 10];
    while let Ok(n @ 1..) = from.read(&mut room) {
        before_each();
        if to.write_all(&room[..n]).is_err() {
            break;
        }
    }
    // If one end is closed, the other is closed too.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A proxy that cuts, hangs and delays connections on demand, in front of a server that may restart at another
/// address.
pub struct FaultyProxy {
    /// The address of the proxy.
    pub address: SocketAddr,
    network: Arc<Network>,
}

/// The state that all connections share.
#[derive(Default)]
struct Network(Mutex<NetworkState>);

#[derive(Default)]
struct NetworkState {
    /// Connections are forwarded to them in turn.
    servers: Vec<SocketAddr>,
    /// Delays bytes in each direction.
    delay: Duration,
    /// No bytes pass.
    is_dark: bool,
    /// The open connections, by number.
    connections: Vec<(u64, Faulty)>,
    next: u64,
}

/// One connection through it.
struct Faulty {
    client: TcpStream,
    server: TcpStream,
    /// Drops all bytes silently.
    is_hanging: bool,
    /// The number of reply bytes before the cut.
    reply_bytes: usize,
}

impl Faulty {
    fn cut(&self) {
        // It does not matter which end is already closed.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl FaultyProxy {
    /// Listens in front of a server.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let network = Arc::<Network>::default();
        network.lock().servers = vec![server];
        let own = Arc::clone(&network);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                own.connect(client);
            }
        });
        Self { address, network }
    }

    /// Forwards new connections to these servers in turn from now on.
    pub fn lead_to(&self, servers: &[SocketAddr]) {
        self.network.lock().servers = servers.to_vec();
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.network.lock().connections.iter().for_each(|(_, connection)| connection.cut());
    }

    /// Cuts each open connection after this many more bytes of replies.
    pub fn cut_after(&self, reply_bytes: usize) {
        for (_, connection) in &mut self.network.lock().connections {
            connection.reply_bytes = reply_bytes;
        }
    }

    /// Makes all open connections hang; new ones are forwarded. When the returned value is dropped, the hanging ones
    /// are cut: bytes that were sent meanwhile are lost.
    pub fn hang(&self) -> impl Drop + use<> {
        for (_, connection) in &mut self.network.lock().connections {
            connection.is_hanging = true;
        }
        EndOfHang(Arc::clone(&self.network))
    }

    /// From now on no bytes pass on any connection. When the returned value is dropped, all connections are cut, and
    /// new ones are forwarded.
    pub fn black_out(&self) -> impl Drop + use<> {
        self.network.lock().is_dark = true;
        EndOfBlackout(Arc::clone(&self.network))
    }

    /// Delays all bytes from now on.
    pub fn delay(&self, delay: Duration) {
        self.network.lock().delay = delay;
    }
}

struct EndOfBlackout(Arc<Network>);

impl Drop for EndOfBlackout {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_dark = false;
        state.connections.drain(..).for_each(|(_, connection)| connection.cut());
    }
}

struct EndOfHang(Arc<Network>);

impl Drop for EndOfHang {
    fn drop(&mut self) {
        let connections = &mut self.0.lock().connections;
        connections.extract_if(.., |(_, connection)| connection.is_hanging).for_each(|(_, hung)| hung.cut());
    }
}

impl Network {
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, client: TcpStream) {
        let number = {
            let mut state = self.lock();
            state.next += 1;
            state.next
        };
        let servers = self.lock().servers.clone();
        let address = servers[number as usize % servers.len()];
        // Without a server, the client is cut.
        let Ok(server) = TcpStream::connect(address) else { return };
        let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
        }
        let [to, from] = [(twin(&client), twin(&server)), (twin(&server), twin(&client))];
        let connection = Faulty { client, server, is_hanging: false, reply_bytes: usize::MAX };
        self.lock().connections.push((number, connection));
        for (way, (from, to)) in [(Direction::ToServer, to), (Direction::FromServer, from)] {
            let network = Arc::clone(self);
            std::thread::spawn(move || network.pass(number, way, &from, &to));
        }
    }

    fn pass(&self, number: u64, way: Direction, mut from: &TcpStream, mut to: &TcpStream) {
        let mut room = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut room) {
            match self.admit(number, way, read) {
                Admitted::Swallowed => {}
                Admitted::First(passed) => {
                    if to.write_all(&room[..passed]).is_err() || passed < read {
                        break;
                    }
                }
            }
        }
        let connections = &mut self.lock().connections;
        // The other end of a hanging connection does not learn of the close.
        let is_over = |(own, connection): &mut (u64, Faulty)| *own == number && !connection.is_hanging;
        connections.extract_if(.., is_over).for_each(|(_, connection)| connection.cut());
    }

    fn admit(&self, number: u64, way: Direction, bytes: usize) -> Admitted {
        let mut state = self.lock();
        let delay = state.delay;
        if state.is_dark {
            return Admitted::Swallowed;
        }
        let connection = state.connections.iter_mut().find(|(own, _)| *own == number);
        let passed = match connection {
            None => 0,
            Some((_, Faulty { is_hanging: true, .. })) => return Admitted::Swallowed,
            Some((_, connection)) if way == Direction::FromServer => {
                let passed = bytes.min(connection.reply_bytes);
                connection.reply_bytes -= if connection.reply_bytes == usize::MAX { 0 } else { passed };
                passed
            }
            Some(_) => bytes,
        };
        drop(state);
        // The delay itself; no test waits for it.
        std::thread::sleep(delay);
        Admitted::First(passed)
    }
}

/// The fate of bytes that arrive at a proxy.
enum Admitted {
    /// This many pass; if that is not all, the connection is cut after them.
    First(usize),
    /// They are dropped silently.
    Swallowed,
}

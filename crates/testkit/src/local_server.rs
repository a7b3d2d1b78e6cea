//! A sureq server in this process, in front of any home, on ports of the system's choice.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use sureq::Home;
use sureq_server::{Bounds, Config, ReservationPolicy, Server, ServerError, Stopper};

/// A server that listens. Dropped, it stops.
#[derive(Debug)]
pub struct LocalServer {
    /// Where it speaks RESP.
    pub resp: SocketAddr,
    /// Where it speaks the text dialect.
    pub text: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl LocalServer {
    /// Serves a home.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn start(home: &Home) -> Self {
        Self::start_with(home, ReservationPolicy { timeout_secs: 0, attempts: 0 })
    }

    /// Serves a home, whose reservations in the text dialect end like this.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn start_with(home: &Home, watcher: ReservationPolicy) -> Self {
        let anywhere = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let config = Config {
            resp: anywhere,
            text: anywhere,
            watcher,
            text_idle_secs: 0,
            text_line_bytes_max: sureq::limits::TEXT_LINE_BYTES_MAX,
            text_log: None,
            threads: 2,
            users: Arc::default(),
            text_user: None,
            bounds: Bounds::default(),
        };
        let server = Server::bind(Arc::clone(home.api()), config).expect("loopback has free ports");
        let resp = server.resp_address().expect("it listens for RESP");
        let text = server.text_address().expect("it listens for text");
        let stopper = server.stopper();
        Self { resp, text, stopper, thread: Some(std::thread::spawn(move || server.run())) }
    }

    /// The URL of the home that it is.
    pub fn url(&self) -> String {
        format!("sureq://{}", self.resp)
    }

    /// Stops it in good order.
    ///
    /// # Panics
    ///
    /// If it does not stop in good order.
    pub fn stop(mut self) {
        self.stopper.stop();
        let thread = self.thread.take().expect("it is stopped once");
        let served = thread.join().expect("the server does not panic");
        served.expect("the server stops in good order");
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

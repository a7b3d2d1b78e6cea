//! A sureq server in this process, in front of any home, on ports that the system chooses.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use sureq::Home;
use sureq_server::{Bounds, Config, ReservationPolicy, Server, ServerError, Stopper};

/// A listening server, which is stopped on drop.
#[derive(Debug)]
pub struct LocalServer {
    /// The address for RESP.
    pub resp: SocketAddr,
    /// The address for the text dialect.
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

    /// Serves a home, with this policy for reservations in the text dialect.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn start_with(home: &Home, reservations: ReservationPolicy) -> Self {
        let anywhere = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let config = Config {
            resp: anywhere,
            text: anywhere,
            reservations,
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

    /// The URL of the server as a home.
    pub fn url(&self) -> String {
        format!("sureq://{}", self.resp)
    }

    /// Stops it in an orderly way.
    ///
    /// # Panics
    ///
    /// If the stop fails.
    pub fn stop(mut self) {
        self.stopper.stop();
        let thread = self.thread.take().expect("it is stopped once");
        let served = thread.join().expect("the server does not panic");
        served.expect("the stop is orderly");
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

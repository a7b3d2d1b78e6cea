//! `sureq serve`.

use std::process::ExitCode;

use sureq::{Durability, Home};
use sureq_server::{Config, Server, ServerError, Stopper};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{self, failed};
use crate::say;
use crate::settings::{Plan, ServeArguments};

pub(crate) fn run(arguments: &ServeArguments) -> ExitCode {
    let Plan { home: url, options, config } = match arguments.plan() {
        Ok(plan) => plan,
        Err(why) => return failed(exit::CANNOT_START, why),
    };
    let home = match sureq::open_with(&url, &options) {
        Ok(home) => home,
        Err(error) => return failed(exit::code_of(&error), &error),
    };
    tell_of_cut(&home);
    home.warnings().iter().for_each(|warning| say::err(format_args!("sureq: {warning}")));
    tell_of_open_wires(&config);
    let login = if config.users.is_empty() { "" } else { " --user NAME --askpass" };
    match Server::bind(home, config) {
        Ok(server) => serve(server, |server| welcome(&url, options.durability, login, server)),
        Err(error) => failed(exit::CANNOT_START, error),
    }
}

/// Says that a crash left half a write behind, if one did.
pub(crate) fn tell_of_cut(home: &Home) {
    if let Some(cut) = home.cut() {
        let (file, offset) = (&cut.file, cut.offset);
        say::err(format_args!(
            "sureq: a crash left half a write behind in {file} at offset {offset}; it was never confirmed"
        ));
    }
}

/// Says that passwords and tasks can be read on their way, if they can.
fn tell_of_open_wires(config: &Config) {
    if let Some(address) = config.resp.filter(|address| !address.ip().is_loopback()) {
        say::err(format_args!(
            "sureq: {address} can be reached from other machines, and what is said there is not encrypted: whoever can \
             listen in on the way hears passwords and tasks"
        ));
    }
}

/// Serves until a signal comes or the disk fails.
pub(crate) fn serve(server: Server, ready: impl FnOnce(&Server)) -> ExitCode {
    stop_on_signals(server.stopper());
    ready(&server);
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServerError::Home(_)) => failed(exit::DISK_FAILED, error),
        Err(error) => failed(exit::CANNOT_START, error),
    }
}

fn welcome(url: &str, durability: Durability, login: &str, server: &Server) {
    let promise = match durability {
        _ if url == "mem:" => "nothing is kept",
        _ if !url.starts_with("file:") => "what is confirmed is as durable as that Redis keeps it",
        Durability::Always => "what is confirmed is on disk",
        Durability::Interval => "what is confirmed is on disk within 100 ms",
        Durability::None => "what is confirmed is on disk when the system pleases",
    };
    say::out(format_args!(
        "sureq {} is ready: {}, {promise}",
        env!("CARGO_PKG_VERSION"),
        sureq::without_passwords(url)
    ));
    if let Some(address) = server.resp_address() {
        say::out(format_args!(
            "  Redis clients  {address}   try: redis-cli -p {}{login} RQ.PUSH emails hello",
            address.port()
        ));
    }
    if let Some(address) = server.text_address() {
        say::out(format_args!(
            "  netcat         {address}  try: echo ADD 0 hello | nc -N {} {}",
            address.ip(),
            address.port()
        ));
    }
}

/// The first signal stops the server in good order, the second ends the process where it is. Neither loses anything
/// that was confirmed. When this returns, signals are watched: whoever reads the welcome may send one at once.
fn stop_on_signals(stopper: Stopper) {
    let watch = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let within = runtime.enter();
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(within);
        let stop = async move {
            let mut next = async || tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} };
            next().await;
            stopper.stop();
            next().await;
            std::process::exit(exit::INTERRUPTED)
        };
        let thread = std::thread::Builder::new().name("sureq-signals".to_owned());
        thread.spawn(move || runtime.block_on(stop))
    };
    let watched: std::io::Result<_> = watch();
    if let Err(error) = watched {
        say::err(format_args!("sureq: cannot watch for signals: {error}"));
    }
}

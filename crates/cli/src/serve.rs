//! `sureq serve`.

use std::process::ExitCode;
use std::sync::Arc;

use sureq::{Durability, Home, OpenError, Options, StoreError};
use sureq_server::{Config, Server, ServerError};

use crate::exit::{self, failed};
use crate::settings::{Plan, ServeArguments};
use crate::{allocator, print, signals};

/// What helps where the directory is taken.
const IN_USE: &str = "stop that one, or choose another directory with --home file:DIR";

pub(crate) fn run(arguments: &ServeArguments) -> ExitCode {
    let Plan { home: url, remark, options, config } = match arguments.plan() {
        Ok(plan) => plan,
        Err(why) => return failed(exit::CANNOT_START, why),
    };
    let home = match open_to_serve(&url, &options, IN_USE) {
        Ok(home) => home,
        Err(code) => return code,
    };
    if let Some(remark) = remark {
        print::notice(&remark);
    }
    print_warnings(&home);
    warn_of_plain_text(&config);
    let login = if config.users.is_empty() { "" } else { " --user NAME --askpass" };
    match Server::bind(Arc::clone(home.api()), config) {
        Ok(server) => serve(server, |server| welcome(&url, options.durability, login, server)),
        Err(error) => failed(exit::CANNOT_START, error),
    }
}

/// Opens a home that a server can stand in front of, or says why not; `if_in_use` is what helps where another process has it.
pub(crate) fn open_to_serve(url: &str, options: &Options, if_in_use: &str) -> Result<Home, ExitCode> {
    if url.starts_with("sureq://") {
        let why = "a server in front of a server is not offered: let clients ask that one, or write file:DIR";
        return Err(failed(exit::CANNOT_START, why));
    }
    refuse_huge_pages();
    let home = sureq::open_with(url, options).map_err(|error| match &error {
        OpenError::Store { source: StoreError::InUse { .. }, .. } => {
            failed(exit::code_of(&error), format_args!("{error}: {if_in_use}"))
        }
        _ => failed(exit::code_of(&error), &error),
    });
    allocator::return_memory_now();
    home
}

/// Has memory come in small pages. A huge one is cleared in the middle of a command, which takes milliseconds, and is mostly
/// empty where much is small and goes again.
fn refuse_huge_pages() {
    // A system that knows none, or does not let us, serves as well.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Prints what operators should know about the home.
pub(crate) fn print_warnings(home: &Home) {
    home.warnings().iter().for_each(|warning| print::err(format_args!("sureq: {warning}")));
}

/// Says that passwords and tasks can be read on their way, if they can.
fn warn_of_plain_text(config: &Config) {
    if let Some(address) = config.resp.filter(|address| !address.ip().is_loopback()) {
        print::err(format_args!(
            "sureq: {address} can be reached from other machines, and traffic is not encrypted: passwords and tasks can be \
             intercepted on the way"
        ));
    }
}

/// Serves until a signal comes or the disk fails.
pub(crate) fn serve(server: Server, ready: impl FnOnce(&Server)) -> ExitCode {
    let stopper = server.stopper();
    signals::on_first(move || stopper.stop());
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
        _ if !url.starts_with("file:") => "durability of that Redis",
        Durability::Always => "durability always (on disk before each reply)",
        Durability::Interval => "durability interval (on disk within 100 ms)",
        Durability::None => "durability none (no fsync)",
    };
    print::out(format_args!(
        "sureq {} is ready: {}, {promise}",
        env!("CARGO_PKG_VERSION"),
        sureq::without_passwords(url)
    ));
    if let Some(address) = server.resp_address() {
        print::out(format_args!(
            "  Redis clients  {address}   try: redis-cli -p {}{login} RQ.PUSH emails hello",
            address.port()
        ));
    }
    if let Some(address) = server.text_address() {
        print::out(format_args!(
            "  netcat         {address}  try: echo ADD 0 hello | nc -N {} {}",
            address.ip(),
            address.port()
        ));
    }
}

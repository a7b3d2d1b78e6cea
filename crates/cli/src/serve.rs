//! `sureq serve`.

use std::process::ExitCode;
use std::sync::Arc;

use sureq::{Durability, Home, OpenError, Options, StoreError};
use sureq_server::{Config, Server, ServerError};

use crate::exit::{self, failed};
use crate::settings::{Plan, ServeArguments};
use crate::{allocator, print, signals};

/// Advice if the directory is in use.
const IN_USE: &str = "stop it, or choose another directory with --home file:DIR";

pub(crate) fn run(arguments: &ServeArguments) -> ExitCode {
    let Plan { home: url, warning, options, config } = match arguments.plan() {
        Ok(plan) => plan,
        Err(why) => return failed(exit::CANNOT_START, why),
    };
    let home = match open_to_serve(&url, &options, IN_USE) {
        Ok(home) => home,
        Err(code) => return code,
    };
    if let Some(warning) = warning {
        print::notice(&warning);
    }
    print_warnings(&home);
    warn_of_plain_text(&config);
    let login = if config.users.is_empty() { "" } else { " --user NAME --askpass" };
    match Server::bind(Arc::clone(home.api()), config) {
        Ok(server) => serve(server, |server| welcome(&url, options.durability, login, server)),
        Err(error) => failed(exit::CANNOT_START, error),
    }
}

/// Opens a home for serving, or prints why it cannot; `if_in_use` is the advice if another process has it open.
pub(crate) fn open_to_serve(url: &str, options: &Options, if_in_use: &str) -> Result<Home, ExitCode> {
    if url.starts_with("sureq://") {
        let why =
            format_args!("cannot serve {}: connect clients to it directly", sureq::without_passwords(url));
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

/// Turns transparent huge pages off: clearing one takes milliseconds in the middle of a command, and small allocations
/// leave most of it unused.
fn refuse_huge_pages() {
    // Without the permission, or without huge pages, the server still runs.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

pub(crate) fn print_warnings(home: &Home) {
    home.warnings().iter().for_each(|warning| print::err(format_args!("sureq: {warning}")));
}

/// Warns if passwords and tasks can be intercepted.
fn warn_of_plain_text(config: &Config) {
    if let Some(address) = config.resp.filter(|address| !address.ip().is_loopback()) {
        print::err(format_args!(
            "sureq: {address} can be reached from other machines, and connections are not encrypted: passwords and tasks \
             can be intercepted"
        ));
    }
}

/// Serves until a signal arrives or the disk fails.
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

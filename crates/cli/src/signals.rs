//! Handling of SIGTERM and SIGINT.

use tokio::signal::unix::{SignalKind, signal};

use crate::{exit, print};

/// Calls `stop` on the first signal; the second one exits the process at once. Signals are handled when this returns,
/// so that a reader of the next output may send one.
pub(crate) fn on_first(stop: impl FnOnce() + Send + 'static) {
    on_both(stop, || {});
}

/// The same, and calls `last` on the second signal, before the process exits.
pub(crate) fn on_both(stop: impl FnOnce() + Send + 'static, last: impl FnOnce() + Send + 'static) {
    let watch = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let within = runtime.enter();
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(within);
        let wait = async move {
            let mut next = async || tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} };
            next().await;
            stop();
            next().await;
            last();
            std::process::exit(exit::INTERRUPTED)
        };
        let thread = std::thread::Builder::new().name("sureq-signals".to_owned());
        thread.spawn(move || runtime.block_on(wait))
    };
    let watched: std::io::Result<_> = watch();
    if let Err(error) = watched {
        print::err(format_args!("sureq: cannot handle signals: {error}"));
    }
}

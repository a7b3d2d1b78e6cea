//! Catches panics, because a panic that unwinds into Redis would abort the server.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::redis;

/// Runs a callback. A panic is logged, and `otherwise` is returned.
pub(crate) fn guarded<T>(what: &'static str, otherwise: T, callback: impl FnOnce() -> T) -> T {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        injected(what);
        callback()
    }));
    ran.unwrap_or_else(|panic| {
        let why = text_of(&*panic);
        redis::log("warning", &format!("sureq: a panic in {what} was contained: {why}"));
        otherwise
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Panics at this place if the environment variable requests it, for tests; only in debug builds.
fn injected(what: &str) {
    if cfg!(debug_assertions) {
        let asked = std::env::var_os("SUREQ_MODULE_PANIC");
        assert!(asked.is_none_or(|asked| asked != what), "injected into {what}");
    }
}

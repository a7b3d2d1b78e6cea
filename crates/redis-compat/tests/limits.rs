//! The limits of commands are the same in the layouts of other programs.

#[path = "support/mod.rs"]
mod common;

use sureq_core::command::Command;
use sureq_core::{Reply, limits};

use common::info;
use common::shop::{QUEUE, Shop};

/// A push is one script.
#[test]
fn a_push_adds_a_bounded_number_of_tasks() {
    let payloads: Vec<String> = (0..=limits::PUSH_TASKS_MAX).map(|n| n.to_string()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    for options in ["layout=work-queue", "layout=worqr", "layout=redis-queue&tasktimeout=60"] {
        let shop = Shop::with(options);
        let refused = shop.refusal(Command::Push { queue: QUEUE, payloads: &payloads });
        assert!(
            refused.starts_with("ERR too many payloads: at most 10000 in one command"),
            "{options}: {refused}"
        );
        assert_eq!(info(&shop.home, QUEUE).ready, 0, "{options}");
        let pushed = shop.reply(Command::Push { queue: QUEUE, payloads: &payloads[1..] });
        assert!(matches!(pushed, Reply::Pushed(_) | Reply::PushedForeign(_)), "{options}: {pushed:?}");
        assert_eq!(info(&shop.home, QUEUE).ready, limits::PUSH_TASKS_MAX as u64, "{options}");
        shop.home.close();
    }
}

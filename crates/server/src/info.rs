//! The reply to INFO: the fields that client libraries look for, and metrics for operators.

use std::fmt::Write as _;
use std::time::Instant;

use sureq_home_api::Home;

use crate::clients::Clients;
use crate::memory::resident_bytes;
use crate::subscriptions::Subscriptions;

/// The Redis version whose behaviour is followed. Client libraries choose features by it.
pub(crate) const REDIS_VERSION: &str = "7.4.0";

/// The sources of the INFO reply.
pub(crate) struct Facts<'f> {
    pub(crate) home: &'f dyn Home,
    pub(crate) clients: &'f Clients,
    pub(crate) subscriptions: &'f Subscriptions,
    pub(crate) started: Instant,
    pub(crate) resp_port: u16,
}

/// The requested sections, or all of them.
pub(crate) fn info(facts: &Facts<'_>, sections: &[&[u8]]) -> String {
    let all = |name: &[u8]| {
        [&b"default"[..], b"all", b"everything"].iter().any(|all| name.eq_ignore_ascii_case(all))
    };
    let wanted = |section: &str| {
        sections.is_empty()
            || sections.iter().any(|asked| all(asked) || asked.eq_ignore_ascii_case(section.as_bytes()))
    };
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if wanted(name) {
            let gap = if text.is_empty() { "" } else { "\r\n" };
            let _ = write!(text, "{gap}# {name}\r\n");
            write(facts, &mut text);
        }
    }
    text
}

type Section = (&'static str, fn(&Facts<'_>, &mut String));

const SECTIONS: [Section; 5] = [
    ("Server", |facts, text| {
        let uptime = facts.started.elapsed().as_secs();
        line(text, "redis_version", REDIS_VERSION);
        line(text, "sureq_version", env!("CARGO_PKG_VERSION"));
        line(text, "redis_mode", "standalone");
        line(text, "process_id", std::process::id());
        line(text, "tcp_port", facts.resp_port);
        line(text, "uptime_in_seconds", uptime);
    }),
    ("Clients", |facts, text| {
        line(text, "connected_clients", facts.clients.len());
        line(text, "blocked_clients", facts.home.waiters());
        line(text, "pubsub_clients", facts.subscriptions.subscribers());
        line(text, "maxclients", facts.clients.max());
    }),
    ("Memory", |facts, text| {
        let status = facts.home.status().unwrap_or_default();
        line(text, "used_memory", status.memory_bytes);
        line(text, "used_memory_rss", resident_bytes());
        line(text, "maxmemory", status.memory_bytes_max);
        line(text, "cache_bytes", status.cache_bytes);
    }),
    ("Persistence", |facts, text| {
        line(text, "loading", 0);
        line(text, "durable_position", facts.home.durable());
        let status = facts.home.status().unwrap_or_default();
        line(text, "log_position", status.position);
        line(text, "log_bytes_written", status.logged_bytes);
        line(text, "log_bytes_since_checkpoint", status.since_checkpoint_bytes);
        line(text, "log_segments", status.segments);
        line(text, "log_segments_bytes", status.segments_bytes);
        line(text, "log_live_bytes", status.live_bytes);
        line(text, "checkpoint_position", status.checkpoint);
        line(text, "checkpoint_due_bytes", status.checkpoint_due_bytes);
        line(text, "checkpoint_running", u8::from(status.is_checkpointing));
        line(text, "checkpoints_taken", status.checkpoints);
        line(text, "checkpoint_bytes_written", status.checkpoint_bytes);
        line(text, "copy_forward_running", u8::from(status.is_copying));
        line(text, "copied_bytes_written", status.copied_bytes);
        line(text, "segment_bytes", status.segment_bytes);
        line(text, "disk_free_bytes", status.disk_free_bytes);
        line(text, "disk_full", u8::from(status.is_full));
        line(text, "read_errors", status.read_errors);
        line(text, "unreadable_tasks", status.unreadable_tasks);
        line(text, "unreadable_segments", status.unreadable_segments);
    }),
    ("Stats", |facts, text| {
        line(text, "total_connections_received", facts.clients.total());
        let (channels, patterns) = facts.subscriptions.len();
        line(text, "pubsub_channels", channels);
        line(text, "pubsub_patterns", patterns);
        line(text, "client_output_buffer_limit_disconnections", facts.subscriptions.too_slow());
        line(text, "pubsub_pattern_limit_disconnections", facts.subscriptions.too_costly());
    }),
];

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

//! Notices clients of the old layout, of redis-work-queue up to 0.1.5.
//!
//! They use other keys for leases, so they and sureq would not see each other's leases. The script looks for those
//! keys if a call asks for it: the first call about a queue does, and later ones now and then. While a queue has such
//! keys, every call does, so that the queue can be used as soon as its old workers have emptied it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use redis::Value;

use super::POP_QUEUES;
use sureq_redis::layout::Call;

/// The interval at which a queue without such keys is looked at again.
const LOOK_MS: u64 = 10_000;

/// The most queues that are remembered.
const QUEUES_MAX: usize = 10_000;

/// When each queue is to be looked at again, on the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct OldClients(RefCell<BTreeMap<Vec<u8>, u64>>);

impl OldClients {
    /// Whether a call should look.
    pub(crate) fn is_due(&self, call: &Call, now_ms: u64) -> bool {
        let due = self.0.borrow();
        queues_of(call).iter().any(|queue| due.get(queue).is_none_or(|at| *at <= now_ms))
    }

    /// Learns from the answer to a call that looked.
    pub(crate) fn learn(&self, call: &Call, answer: &Value, now_ms: u64) {
        let mut due = self.0.borrow_mut();
        if due.len() > QUEUES_MAX {
            due.clear();
        }
        for queue in queues_of(call) {
            if is_old(answer) {
                due.remove(queue);
            } else {
                due.insert(queue.clone(), now_ms + LOOK_MS);
            }
        }
    }
}

fn is_old(answer: &Value) -> bool {
    let Value::Array(words) = answer else { return false };
    matches!(&words[..], [Value::BulkString(mark), Value::BulkString(code), _] if mark == b"!" && code == b"UNAVAILABLE")
}

/// The queues that a call is about.
fn queues_of(call: &Call) -> &[Vec<u8>] {
    match call.op {
        "pop" => &call.args[POP_QUEUES..],
        "exists" | "drop" => &call.args,
        _ if call.queue.is_some() => &call.args[..1],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_is_looked_at_first_and_then_at_intervals() {
        let old_clients = OldClients::default();
        let (a, ab) = (Call::about("info", b"a"), Call::over("exists", &[b"a", b"b"]));
        assert!(old_clients.is_due(&a, 5));
        old_clients.learn(&a, &Value::Nil, 5);
        assert!(!old_clients.is_due(&a, 5));
        assert!(old_clients.is_due(&ab, 5), "b has not been looked at");
        old_clients.learn(&ab, &Value::Nil, 6);
        assert!(!old_clients.is_due(&ab, 7));
        assert!(old_clients.is_due(&a, 6 + LOOK_MS));
        let words =
            [&b"!"[..], b"UNAVAILABLE", b"old clients use it"].map(|word| Value::BulkString(word.to_vec()));
        old_clients.learn(&a, &Value::Array(words.to_vec()), 7);
        assert!(old_clients.is_due(&a, 8), "an old queue is looked at again");
    }
}

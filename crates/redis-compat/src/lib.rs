//! The key layouts of three other programs on Redis, so that their clients and sureq share queues.
//!
//! - `work_queue`: redis-work-queue, `layout=work-queue`. `worqr`: Worqr, `layout=worqr`. `redis_queue`: redis-queue,
//!   `layout=redis-queue`. Each is a [`Layout`] with a script of its own in `lua/`, and a session with its state.
//! - `foreign` is the common part: commands that all of these layouts support, or none.
//! - `cleaning` requeues tasks whose clients are gone. In these layouts nothing in Redis notices that.
//!
//! The reference pages redis-work-queue.md, redis-worqr.md and redis-redis-queue.md in docs/reference list the keys.
#![forbid(unsafe_code)]

mod cleaning;
mod foreign;
mod redis_queue;
mod work_queue;
mod worqr;

use std::sync::Arc;

use sureq_redis::BadTarget;
use sureq_redis::layout::{Layout, LayoutOptions, Layouts};

pub use redis_queue::{SafeTask, mark_done, safe_pop};

/// The layouts of this crate, for [`sureq_redis::Target::parse_with`].
pub const LAYOUTS: Layouts = Layouts {
    names: ", work-queue, worqr and redis-queue",
    options: "; with layout=work-queue lease; with layout=redis-queue poptimeout, tasktimeout and exptime",
    find,
};

fn find(name: &str, options: &mut LayoutOptions<'_>) -> Result<Option<Arc<dyn Layout>>, BadTarget> {
    Ok(Some(match name {
        "work-queue" => Arc::new(work_queue::WorkQueue::new(options)?),
        "worqr" => Arc::new(worqr::Worqr),
        "redis-queue" => Arc::new(redis_queue::RedisQueue::new(options)?),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use sureq_redis::Target;

    use super::*;
    use redis_queue::RedisQueue;
    use work_queue::WorkQueue;

    fn parse(url: &str) -> Result<Target, BadTarget> {
        Target::parse_with(url, &LAYOUTS)
    }

    fn refused(url: &str) -> String {
        parse(url).expect_err("the URL is invalid").to_string()
    }

    #[test]
    fn each_layout_has_its_own_options() {
        let target = parse("redis://h?layout=work-queue&lease=250").unwrap();
        assert_eq!(target.layout().downcast::<WorkQueue>(), Some(&WorkQueue { lease_ms: 250 }));
        assert!(matches!(parse("redis://h?layout=work-queue&lease=0"), Err(BadTarget::Lease { .. })));
        let target = parse("redis://h?tasktimeout=5&layout=redis-queue&exptime=9").unwrap();
        let expected = RedisQueue { pop_s: 30, task_s: 5, expire_s: Some(9) };
        assert_eq!(target.layout().downcast::<RedisQueue>(), Some(&expected));
        assert!(refused("redis://h?layout=worqr&lease=5").starts_with("there is no option \"lease\""));
        assert!(
            refused("redis://h?layout=work-queue&exptime=5").starts_with("there is no option \"exptime\"")
        );
        let url = "redis://h?layout=redis-queue&tasktimeout=0";
        assert_eq!(refused(url), "invalid time tasktimeout=0: write whole seconds, at least 1");
        assert!(matches!(parse("redis://h?lease=5"), Err(BadTarget::Option { .. })));
        assert_eq!(
            refused("redis://h?layout=odd"),
            "there is no layout \"odd\": known are sureq, work-queue, worqr and redis-queue"
        );
    }

    #[test]
    fn only_layouts_in_one_slot_with_published_changes_work_in_a_cluster() {
        for layout in ["work-queue", "worqr"] {
            assert!(refused(&format!("redis-cluster://a?layout={layout}")).contains("prefix={jobs}:"));
            assert!(parse(&format!("redis-cluster://a?layout={layout}&prefix={{jobs}}:")).is_ok());
        }
        for url in
            ["redis-cluster://a?layout=redis-queue", "rediss-cluster://a?layout=redis-queue&prefix={a}"]
        {
            assert!(refused(url).starts_with("layout redis-queue does not work in a cluster"));
        }
        for scheme in ["redis", "rediss", "redis-sentinel", "rediss-sentinel"] {
            for layout in ["sureq", "work-queue", "worqr", "redis-queue"] {
                assert!(parse(&format!("{scheme}://a/0?layout={layout}")).is_ok(), "{scheme} {layout}");
            }
        }
    }

    #[test]
    fn each_layout_names_its_keys_and_channels() {
        let key = |url: &str| parse(url).unwrap().queue_key(b"jobs");
        assert_eq!(key("redis://h?layout=work-queue"), b"jobs:queue");
        assert_eq!(key("redis://h?layout=work-queue&prefix=a:"), b"a:jobs:queue");
        assert_eq!(key("redis://h?layout=worqr"), b"worqr:queues:jobs");
        assert_eq!(key("redis://h?layout=redis-queue"), b"jobs");
        let target = parse("redis://h?layout=worqr").unwrap();
        let channels = target.channels();
        assert_eq!(channels.name("work", b"a_b"), b"worqr_a_b_work");
        assert_eq!(channels.queue("work", b"worqr_a_b_work"), Some(&b"a_b"[..]));
        assert_eq!(channels.pattern("cancel"), b"worqr_*_cancel");
    }
}

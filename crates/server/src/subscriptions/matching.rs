//! Matches all patterns against the channel of a message, without delaying other connections.
//!
//! The lock is held only to copy some patterns at a time, and new connections are accepted between steps. Each
//! subscriber has a budget of steps for its patterns; a subscriber that needs more is disconnected.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use sureq_core::broker::glob_matches_within;
use sureq_core::command::ConnId;
use sureq_core::limits;

use super::{
    Audience, GivenUp, Index, MAILBOX_STEPS, Mailbox, Name, Subscriptions, YieldBudget, names_after,
};

/// A subscriber of a pattern, whose budget pays for matching it.
type Payer = (ConnId, Arc<Mailbox>);

/// The matching of all patterns against one channel.
struct Pass<'p> {
    channel: &'p [u8],
    yields: &'p mut YieldBudget,
    /// The steps that each subscriber's patterns may still take.
    budgets: HashMap<ConnId, usize>,
    /// Every pattern was matched.
    is_complete: bool,
}

impl Subscriptions {
    /// The patterns that match a channel. They are matched without the lock, within the budgets of their subscribers.
    pub(super) async fn matching(&self, channel: &[u8], yields: &mut YieldBudget) -> Arc<[Name]> {
        let mut pass = Pass { channel, yields, budgets: HashMap::new(), is_complete: true };
        let (mut matching, mut last) = (Vec::new(), None);
        let changes = self.lock().pattern_changes;
        loop {
            let patterns = self.lock().patterns_after(last.as_ref());
            let Some((name, _)) = patterns.last() else { break };
            last = Some(Arc::clone(name));
            for (name, payer) in patterns {
                if self.matches(&name, payer, &mut pass).await {
                    matching.push(name);
                }
            }
        }
        let matching = matching.into();
        let mut index = self.lock();
        let is_valid = pass.is_complete && index.pattern_changes == changes;
        let removed = is_valid.then(|| index.matches.insert(channel, &matching));
        drop(index);
        drop(removed);
        matching
    }

    /// Whether a pattern matches. The first of its subscribers with enough budget pays for the matching. The
    /// subscribers before it are disconnected, because they would miss a message. The others are not: their own
    /// patterns may be cheap.
    ///
    /// A pattern whose subscribers are all given up matches nothing. Its next subscriber causes all patterns to be
    /// matched again.
    async fn matches(&self, name: &Name, mut payer: Payer, pass: &mut Pass<'_>) -> bool {
        loop {
            let (conn, mailbox) = payer;
            if mailbox.check().is_ok() {
                let budget = pass.budgets.entry(conn).or_insert(limits::NOTICE_STEPS_MAX);
                let before = *budget;
                let matches = glob_matches_within(name, pass.channel, budget);
                let steps = before - *budget;
                pass.yields.spend(steps + MAILBOX_STEPS).await;
                if let Some(matches) = matches {
                    return matches;
                }
                pass.is_complete = false;
                if before == limits::NOTICE_STEPS_MAX {
                    self.give_up_audience(name);
                    return false;
                }
                mailbox.give_up(GivenUp::TooCostly);
            } else {
                pass.yields.spend(MAILBOX_STEPS).await;
            }
            let next = self.lock().patterns.get(name).and_then(|audience| live_payer(audience, conn));
            let Some(next) = next else { return false };
            payer = next;
        }
    }

    /// Gives up all subscribers of a pattern, because none of them has enough budget for it.
    fn give_up_audience(&self, pattern: &Name) {
        let index = self.lock();
        let audience = index.patterns.get(pattern).into_iter().flat_map(BTreeMap::values);
        audience.for_each(|mailbox| mailbox.give_up(GivenUp::TooCostly));
    }
}

impl Index {
    /// The next patterns after `last` in order, each with its first subscriber.
    fn patterns_after(&self, last: Option<&Name>) -> Vec<(Name, Payer)> {
        let patterns = names_after(&self.patterns, last);
        patterns
            .filter_map(|(name, audience)| Some((Arc::clone(name), payer_of(audience.iter().next()?))))
            .collect()
    }
}

/// The next subscriber of a pattern that is not given up: after this one, or else before it, where one may have come
/// meanwhile.
fn live_payer(audience: &Audience, last: ConnId) -> Option<Payer> {
    let after = audience.range((Bound::Excluded(last), Bound::Unbounded));
    let before = audience.range(..last);
    after.chain(before).find(|(_, mailbox)| mailbox.check().is_ok()).map(payer_of)
}

fn payer_of((conn, mailbox): (&ConnId, &Arc<Mailbox>)) -> Payer {
    (*conn, Arc::clone(mailbox))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use sureq_proto::verbs::By;

    use super::*;
    use crate::subscriptions::tests::{deliver, mailbox, names, notice, subscriptions};

    /// A pattern that takes about 300,000 steps to match the channel of `LONG`. Different values of `n` give
    /// different patterns.
    fn costly_pattern(n: usize) -> Vec<u8> {
        format!("*{}{n}", "a".repeat(400)).into_bytes()
    }

    const LONG: [u8; 1_000] = [b'a'; 1_000];

    #[test]
    fn yields_to_other_tasks_between_costly_patterns() {
        let all = subscriptions();
        let subscribers: Vec<_> = (0..20).map(|_| mailbox().0).collect();
        for (n, mailbox) in subscribers.iter().enumerate() {
            all.add(By::Pattern, &costly_pattern(n), ConnId(n as u64), mailbox);
        }
        assert!(deliver(&all, notice(&LONG)) >= 20);
        assert_eq!(deliver(&all, notice(&LONG)), 0, "the matches are remembered");
        assert!(
            subscribers.iter().all(|mailbox| mailbox.check().is_ok()),
            "each has enough budget for its own"
        );
    }

    #[test]
    fn gives_up_only_the_subscriber_whose_patterns_cost_too_much() {
        let (all, (costly, woken), (cheap, _), (shares, _)) =
            (subscriptions(), mailbox(), mailbox(), mailbox());
        let patterns: Vec<Name> =
            (0..10).map(|n| all.add(By::Pattern, &costly_pattern(n), ConnId(1), &costly)).collect();
        for pattern in [&b"sureq:*"[..], b"[s]ureq:*"] {
            all.add(By::Pattern, pattern, ConnId(1), &costly);
            all.add(By::Pattern, pattern, ConnId(2), &cheap);
        }
        all.add(By::Pattern, &costly_pattern(9), ConnId(3), &shares);
        for _ in 0..2 {
            assert!(deliver(&all, notice(&LONG)) <= 10, "no more than the budgets of two");
            assert_eq!(names(&cheap), ["[s]ureq:*", "sureq:*"]);
            assert_eq!(costly.take().err(), Some(GivenUp::TooCostly));
            assert!(shares.check().is_ok() && woken.0.load(Ordering::Relaxed) > 0);
        }
        for pattern in patterns {
            all.remove(By::Pattern, &pattern, ConnId(1));
        }
        assert_eq!(deliver(&all, notice(&LONG)), 1, "the remaining pattern");
    }

    #[test]
    fn gives_up_all_subscribers_of_a_pattern_that_none_can_afford() {
        let (all, subscribers) = (subscriptions(), [mailbox().0, mailbox().0]);
        let pattern = format!("*{}b", "a".repeat(2_000));
        for (conn, mailbox) in (0..).map(ConnId).zip(&subscribers) {
            all.add(By::Pattern, pattern.as_bytes(), conn, mailbox);
        }
        assert_eq!(deliver(&all, notice(&[b'a'; 4_000])), 1);
        assert!(subscribers.iter().all(|mailbox| mailbox.check() == Err(GivenUp::TooCostly)));
    }

    /// The remembered matches of a channel after one message on it.
    fn remembered(all: &Subscriptions, queue: &[u8]) -> Option<Arc<[Name]>> {
        deliver(all, notice(queue));
        let mut channel = Vec::new();
        sureq_proto::channel::write(sureq_core::notice::Kind::Work, queue, &mut channel);
        all.lock().matches.get(&channel)
    }

    #[test]
    fn matches_are_remembered_although_a_subscriber_is_given_up() {
        let (all, (live, _)) = (subscriptions(), mailbox());
        all.add(By::Pattern, b"*", ConnId(9), &live);
        for conn in [1, 5] {
            let (dead, _) = mailbox();
            all.add(By::Pattern, b"sureq:work:*", ConnId(conn), &dead);
            all.add(By::Pattern, b"sureq:w*", ConnId(conn), &dead);
            dead.give_up(GivenUp::TooSlow);
        }
        all.add(By::Pattern, b"sureq:w*", ConnId(3), &live);
        let matching = remembered(&all, b"q").expect("all that count were matched");
        assert_eq!(matching.iter().map(|name| &**name).collect::<Vec<_>>(), [&b"*"[..], b"sureq:w*"]);
        assert_eq!(names(&live), ["*", "sureq:w*"]);
    }

    #[test]
    fn a_pattern_of_subscribers_that_are_given_up_is_matched_for_the_next() {
        for next in [1, 9] {
            let (all, (dead, _), (live, _)) = (subscriptions(), mailbox(), mailbox());
            all.add(By::Pattern, b"sureq:work:*", ConnId(5), &dead);
            dead.give_up(GivenUp::TooSlow);
            assert_eq!(remembered(&all, b"q").as_deref(), Some(&[][..]));
            all.add(By::Pattern, b"sureq:work:*", ConnId(next), &live);
            assert_eq!(remembered(&all, b"q").map(|matching| matching.len()), Some(1));
            assert_eq!(names(&live), ["sureq:work:*"]);
        }
    }
}

//! Settings of a queue, and how they are cleared.

use crate::support::{Answer, Home};
use sureq_core::command::Command;
use sureq_core::limits;
use sureq_core::settings::{Change, Changes, Expired, Overflow, Settings};

#[test]
fn a_zero_or_an_empty_name_clears_a_setting() {
    type Set<'a> = (Change<'a>, Change<'a>, fn(&Settings) -> bool);
    let each: [Set<'_>; 10] = [
        (Change::LeaseMs(1), Change::LeaseMs(0), |s| s.lease_ms == Some(1)),
        (Change::Tries(1), Change::Tries(0), |s| s.tries == Some(1)),
        (Change::BackoffMs(1), Change::BackoffMs(0), |s| s.backoff_ms == Some(1)),
        (Change::TtlMs(1), Change::TtlMs(0), |s| s.ttl_ms == Some(1)),
        (Change::Expired(Expired::Dead), Change::Expired(Expired::Delete), |s| s.expired == Expired::Dead),
        (Change::MaxLength(1), Change::MaxLength(0), |s| s.max_length == Some(1)),
        (Change::MaxBytes(1), Change::MaxBytes(0), |s| s.max_bytes == Some(1)),
        (Change::Overflow(Overflow::DropOldest), Change::Overflow(Overflow::Refuse), |s| {
            s.overflow == Overflow::DropOldest
        }),
        (Change::MaxLeased(1), Change::MaxLeased(0), |s| s.max_leased == Some(1)),
        (Change::DeadLetter(b"d"), Change::DeadLetter(b""), |s| s.dead_letter.as_deref() == Some(b"d")),
    ];
    for (set, clear, is_set) in each {
        let mut home = Home::default();
        let mut change = |change| {
            let answer = home.run(&Command::Config { queue: b"q", changes: Changes::List(&[change]) });
            let Answer::Settings(settings) = answer else { panic!("{answer:?}") };
            home.verify();
            *settings
        };
        let settings = change(set);
        assert!(is_set(&settings) && !settings.is_default(), "{settings:?}");
        assert!(change(clear).is_default(), "{clear:?}");
    }
}

#[test]
fn a_queue_without_settings_has_the_defaults() {
    let none = Settings::default();
    assert_eq!((none.tries(), none.backoff_ms()), (limits::TRIES_DEFAULT, limits::BACKOFF_MS_DEFAULT));
    let some = Settings { tries: Some(7), backoff_ms: Some(9), ..none };
    assert_eq!((some.tries(), some.backoff_ms()), (7, 9));
}

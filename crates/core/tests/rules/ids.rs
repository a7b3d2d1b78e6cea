//! Ids, numbers and points in time, at the ends of their ranges.

use sureq_core::id::{RECEIPT_LEN_MAX, SHORT_LEN, decimal};
use sureq_core::{LogTime, Receipt, TaskId};

const SEQ_MAX: u64 = 131_071;
const MS_MAX: u64 = 4_398_046_511_103;

#[test]
fn an_id_has_a_millisecond_and_a_sequence_from_one() {
    assert_eq!(TaskId::new(5, 0), None);
    assert_eq!(TaskId::new(5, SEQ_MAX + 1), None);
    assert_eq!(TaskId::new(MS_MAX + 1, 1), None);
    let last = TaskId::new(MS_MAX, SEQ_MAX).unwrap();
    assert_eq!((last, last.ms(), last.seq()), (TaskId::LAST, MS_MAX, SEQ_MAX));
    assert_eq!(TaskId::from_raw(0), None, "0 means no task");
    assert_eq!(TaskId::from_raw(5 << 17 | 3), TaskId::new(5, 3));
    assert_eq!(last.raw(), MS_MAX << 17 | SEQ_MAX);
}

#[test]
fn the_highest_id_up_to_a_number() {
    let id = |ms, seq| TaskId::new(ms, seq);
    let raw = |ms, seq| TaskId::new(ms, seq).unwrap().raw();
    for (number, expected) in [
        (0, None),
        (1, id(0, 1)),
        (raw(5, 3), id(5, 3)),
        (raw(5, SEQ_MAX), id(5, SEQ_MAX)),
        // The number between two milliseconds is not an id.
        (raw(5, SEQ_MAX) + 1, id(5, SEQ_MAX)),
        (raw(6, 1), id(6, 1)),
        (TaskId::LAST.raw() - 1, id(MS_MAX, SEQ_MAX - 1)),
        (TaskId::LAST.raw(), Some(TaskId::LAST)),
        (TaskId::LAST.raw() + 1, Some(TaskId::LAST)),
        (u64::MAX, Some(TaskId::LAST)),
    ] {
        assert_eq!(TaskId::at_or_below(number), expected, "{number}");
    }
}

#[test]
fn a_decimal_number_is_only_digits_and_fits_64_bits() {
    assert_eq!(decimal(b"0"), Some(0));
    assert_eq!(decimal(b"00000000000000000009"), Some(9), "twenty digits");
    assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
    for bad in [
        "",
        "18446744073709551616",
        "99999999999999999999",
        "000000000000000000001",
        "1 ",
        "-1",
        "1a",
        ":",
        "/",
    ] {
        assert_eq!(decimal(bad.as_bytes()), None, "{bad:?}");
    }
}

#[test]
fn the_text_of_ids_has_the_shortest_and_longest_length() {
    let longest = Receipt { id: TaskId::LAST, incarnation: u64::MAX, delivery: u32::MAX };
    assert_eq!(longest.to_string().len(), RECEIPT_LEN_MAX);
    assert_eq!(longest.to_string(), "4398046511103-131071@4294967295.18446744073709551615");
    assert_eq!(TaskId::new(0, 1).unwrap().short(), *b"0000000001");
    assert_eq!(TaskId::parse_short(b"0000000001"), TaskId::new(0, 1));
    assert_eq!(TaskId::parse_short(b"zzzzzzzzzz"), None, "above every id");
    for bad in [
        &b"000000001"[..],
        b"00000000001",
        b"000000000-",
        b"000000000@",
        b"000000000[",
        b"000000000`",
        b"000000000{",
    ] {
        assert_eq!(TaskId::parse_short(bad), None, "{bad:?}");
    }
    assert_eq!(SHORT_LEN, TaskId::LAST.short().len());
}

#[test]
fn log_time_saturates() {
    let at = LogTime(7);
    assert_eq!((at.after(3), LogTime(u64::MAX - 1).after(3)), (LogTime(10), LogTime(u64::MAX)));
    assert_eq!((LogTime(10).since(at), at.since(LogTime(10)), at.since(at)), (3, 0, 0));
    assert_eq!(at.to_string(), "7");
}

//! Task ids and receipts. An id is one number with two text forms.
//!
//! An id is one `u64` below 62^10: 42 bits of unix milliseconds and 17 bits of sequence that start at 1. RESP
//! shows it as `<ms>-<seq>`, as Redis Streams do; the text dialect shows the same number as ten letters of
//! `0-9A-Za-z`. The sequence never being 0 leaves 0 free to mean "no id".

use core::fmt::{self, Write as _};

const SEQ_BITS: u32 = 17;
const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
const MS_MAX: u64 = (1 << 42) - 1;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The decimal pairs `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

/// The last two digits of a number.
const fn pair(n: u32) -> [u8; 2] {
    PAIRS[(n % 100) as usize]
}

/// The number of letters of the short form of an id.
pub const SHORT_LEN: usize = 10;

/// The length of the longest receipt: `<13 digits>-<6>@<10>.<20>`.
pub const RECEIPT_LEN_MAX: usize = 13 + 1 + 6 + 1 + 10 + 1 + 20;

/// The identity of a task, unique in its store for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u64);

impl TaskId {
    /// Less than every id. No task has it.
    pub const NONE: Self = Self(0);

    /// Greater than every id. No task has it.
    pub const LAST: Self = Self(MS_MAX << SEQ_BITS | SEQ_MAX);

    /// The id with this millisecond and sequence, if both are in range.
    pub const fn new(ms: u64, seq: u64) -> Option<Self> {
        if ms > MS_MAX || seq == 0 || seq > SEQ_MAX { None } else { Some(Self(ms << SEQ_BITS | seq)) }
    }

    /// The id with this number, if it is a valid one.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        Self::new(raw >> SEQ_BITS, raw & SEQ_MAX)
    }

    /// The highest id that is at most this number.
    pub const fn at_or_below(raw: u64) -> Option<Self> {
        if raw >= Self::LAST.0 {
            return Some(Self::LAST);
        }
        // A number whose sequence is zero is not an id; the one before it is.
        if raw & SEQ_MAX == 0 && raw > 0 { Self::from_raw(raw - 1) } else { Self::from_raw(raw) }
    }

    /// The number that represents the id in logs and indexes.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The unix millisecond part. It may be ahead of the clock, so ages must not be computed from it.
    pub const fn ms(self) -> u64 {
        self.0 >> SEQ_BITS
    }

    /// The sequence within the millisecond, from 1.
    pub const fn seq(self) -> u64 {
        self.0 & SEQ_MAX
    }

    /// The first id after `self` that may be assigned at millisecond `ms`: the clock's if it is ahead, else the next
    /// in sequence. A full millisecond borrows from the next one. `None` in the year 2109.
    pub const fn next(self, ms: u64) -> Option<Self> {
        if ms > self.ms() { Self::new(ms, 1) } else { self.successor() }
    }

    /// The id that follows in sequence, regardless of the clock.
    pub const fn successor(self) -> Option<Self> {
        if self.seq() < SEQ_MAX { Self::new(self.ms(), self.seq() + 1) } else { Self::new(self.ms() + 1, 1) }
    }

    /// The id `n` steps further in sequence.
    pub const fn nth(self, n: u64) -> Option<Self> {
        let Some(places) = (self.seq() - 1).checked_add(n) else { return None };
        Self::new(self.ms() + places / SEQ_MAX, places % SEQ_MAX + 1)
    }

    /// Parses `<ms>-<seq>`: decimal digits only, without any other characters.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (id, rest) = Self::parse_front(text)?;
        rest.is_empty().then_some(id)
    }

    /// Parses an id at the front of `text`, in one pass. Returns it and the rest.
    fn parse_front(text: &[u8]) -> Option<(Self, &[u8])> {
        let (ms, rest) = digits(text)?;
        let (seq, rest) = digits(rest.strip_prefix(b"-")?)?;
        Some((Self::new(ms, seq)?, rest))
    }

    /// Parses the ten letters of the text dialect.
    pub fn parse_short(text: &[u8]) -> Option<Self> {
        if text.len() != SHORT_LEN {
            return None;
        }
        // Ten letters are at most 62^10 - 1, which is below 2^60.
        let raw = text.iter().try_fold(0u64, |raw, &c| Some(raw * 62 + letter_value(c)?))?;
        Self::from_raw(raw)
    }

    /// The ten letters of the text dialect.
    pub fn short(self) -> [u8; SHORT_LEN] {
        let mut letters = [b'0'; SHORT_LEN];
        let mut rest = self.0;
        for letter in letters.iter_mut().rev() {
            *letter = LETTERS[(rest % 62) as usize];
            rest /= 62;
        }
        letters
    }
}

fn letter_value(c: u8) -> Option<u64> {
    let value = match c {
        b'0'..=b'9' => c - b'0',
        b'A'..=b'Z' => c - b'A' + 10,
        b'a'..=b'z' => c - b'a' + 36,
        _ => return None,
    };
    Some(u64::from(value))
}

/// Parses the decimal number at the front of `text`, of at most 19 digits so that it cannot overflow. Returns it and
/// the rest.
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut n, mut rest) = (0u64, text);
    while let Some((eight, behind)) = rest.split_first_chunk()
        && let Some(value) = eight_digits(*eight)
    {
        (n, rest) = (n.wrapping_mul(100_000_000).wrapping_add(value), behind);
    }
    while let [c @ b'0'..=b'9', behind @ ..] = rest {
        (n, rest) = (n.wrapping_mul(10).wrapping_add(u64::from(c - b'0')), behind);
    }
    let len = text.len() - rest.len();
    (1..=19).contains(&len).then_some((n, rest))
}

/// The number of eight digits, if they are digits. All eight are parsed at once, because every ack does this.
const fn eight_digits(text: [u8; 8]) -> Option<u64> {
    let text = u64::from_le_bytes(text);
    // The first operation sets the high bit of a byte below `0`, the second that of a byte above `9`.
    let digits = text.wrapping_sub(0x3030_3030_3030_3030);
    let above = text.wrapping_add(0x4646_4646_4646_4646);
    if (digits | above) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    // Neighbours are joined: eight digits to four pairs, to two groups of four, to one number.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// A decimal number without sign, blanks or overflow.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |n, &c| match c {
        b'0'..=b'9' => n.checked_mul(10)?.checked_add(u64::from(c - b'0')),
        _ => None,
    })
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms(), self.seq())
    }
}

/// One delivery of one task: `id@n.e`, delivery `n` in incarnation `e` of the store.
///
/// A delivery that was lost in a crash has a smaller `e` than any later one, so the two can never be mistaken for
/// each other. Receipts of one task are ordered by `(e, n)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The task that was delivered.
    pub id: TaskId,
    /// The incarnation of the store that delivered it.
    pub incarnation: u64,
    /// The number of the delivery, from 1.
    pub delivery: u32,
}

impl Receipt {
    /// Parses `<ms>-<seq>@<n>.<e>`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (id, rest) = TaskId::parse_front(text)?;
        Self::parse_behind(id, rest)
    }

    /// Parses `@<n>.<e>`, the part of a receipt after the id.
    fn parse_behind(id: TaskId, text: &[u8]) -> Option<Self> {
        let (delivery, rest) = digits(text.strip_prefix(b"@")?)?;
        let incarnation = decimal(rest.strip_prefix(b".")?)?;
        Some(Self { id, incarnation, delivery: u32::try_from(delivery).ok()? })
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}.{}", self.id, self.delivery, self.incarnation)
    }
}

/// A parsed task reference: an id means the current delivery, a receipt means exactly one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The current delivery of this task.
    Id(TaskId),
    /// This delivery only.
    Receipt(Receipt),
}

impl Claim {
    /// An id that no task has.
    const UNKNOWN: Self = Self::Id(TaskId::LAST);

    /// Parses an id or a receipt in the long form. If it is well formed but out of range, the result is an id that no
    /// task has.
    pub fn parse(text: &[u8]) -> Option<Self> {
        Self::parse_in_range(text).or_else(|| is_well_formed(text).then_some(Self::UNKNOWN))
    }

    fn parse_in_range(text: &[u8]) -> Option<Self> {
        let (id, rest) = TaskId::parse_front(text)?;
        if rest.is_empty() { Some(Self::Id(id)) } else { Receipt::parse_behind(id, rest).map(Self::Receipt) }
    }

    pub const fn id(self) -> TaskId {
        match self {
            Self::Id(id) => id,
            Self::Receipt(receipt) => receipt.id,
        }
    }
}

/// Whether a text is `<ms>-<seq>` or `<ms>-<seq>@<n>.<e>`, with numbers of any size.
fn is_well_formed(text: &[u8]) -> bool {
    let mut rest = skip_number(text).and_then(|rest| skip_number(rest.strip_prefix(b"-")?));
    if rest.is_some_and(|rest| !rest.is_empty()) {
        rest = rest.and_then(|rest| skip_number(rest.strip_prefix(b"@")?));
        rest = rest.and_then(|rest| skip_number(rest.strip_prefix(b".")?));
    }
    rest.is_some_and(<[u8]>::is_empty)
}

/// The rest of `text` after the decimal number at its front, if it begins with one.
fn skip_number(text: &[u8]) -> Option<&[u8]> {
    let len = text.iter().take_while(|c| c.is_ascii_digit()).count();
    (len > 0).then(|| &text[len..])
}

/// The text of an id or receipt, on the stack, so that writing a reply allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct IdText {
    bytes: [u8; RECEIPT_LEN_MAX],
    len: usize,
}

impl IdText {
    /// The text of `what`, which must be an id or a receipt.
    pub fn of(what: impl fmt::Display) -> Self {
        let mut text = Self { bytes: [0; RECEIPT_LEN_MAX], len: 0 };
        write!(text, "{what}").expect("the longest receipt fits");
        text
    }

    /// The text `<ms>-<seq>`. Written without formatting machinery or a loop, because every reply with an id needs
    /// it.
    pub fn of_id(id: TaskId) -> Self {
        // From September 2001 on a unix time in milliseconds has thirteen digits.
        if id.ms() < 1_000_000_000_000 {
            return Self::of(id);
        }
        let mut bytes = [0; RECEIPT_LEN_MAX];
        let (high, low) = ((id.ms() / 100_000_000) as u32, (id.ms() % 100_000_000) as u32);
        bytes[0] = b'0' + (high / 10_000) as u8;
        bytes[1..3].copy_from_slice(&pair(high / 100));
        bytes[3..5].copy_from_slice(&pair(high));
        bytes[5..7].copy_from_slice(&pair(low / 1_000_000));
        bytes[7..9].copy_from_slice(&pair(low / 10_000));
        bytes[9..11].copy_from_slice(&pair(low / 100));
        bytes[11..13].copy_from_slice(&pair(low));
        bytes[13] = b'-';
        let seq = id.seq() as u32;
        let mut six = [0; 8];
        six[..2].copy_from_slice(&pair(seq / 10_000));
        six[2..4].copy_from_slice(&pair(seq / 100));
        six[4..6].copy_from_slice(&pair(seq));
        let digits = [10, 100, 1000, 10_000, 100_000].iter().filter(|&&limit| seq >= limit).count() + 1;
        // The last `digits` of the six: the leading zeros are shifted out.
        let last = u64::from_le_bytes(six) >> (8 * (6 - digits));
        bytes[14..22].copy_from_slice(&last.to_le_bytes());
        Self { bytes, len: 14 + digits }
    }

    /// The text `<ms>-<seq>@<n>.<e>`. Every delivery with a lease needs it.
    pub fn of_receipt(receipt: Receipt) -> Self {
        let mut text = Self::of_id(receipt.id);
        text.push(b'@', u64::from(receipt.delivery));
        text.push(b'.', receipt.incarnation);
        text
    }

    /// Appends a separator and a number.
    fn push(&mut self, mark: u8, mut n: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        while n >= 100 {
            at -= 2;
            digits[at..at + 2].copy_from_slice(&PAIRS[(n % 100) as usize]);
            n /= 100;
        }
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[n as usize]);
        let digits = &digits[at + usize::from(n < 10)..];
        self.bytes[self.len] = mark;
        self.bytes[self.len + 1..][..digits.len()].copy_from_slice(digits);
        self.len += 1 + digits.len();
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for IdText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_long_form_refuses_all_other_text() {
        for bad in [
            "",
            "-",
            "1-",
            "-1",
            "1-0",
            "1-131072",
            " 1-1",
            "1-1 ",
            "+1-1",
            "1--1",
            "1-1-1",
            "4398046511104-1",
        ] {
            assert_eq!(TaskId::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(
            TaskId::parse(b"1601155608777-1").map(|id| (id.ms(), id.seq())),
            Some((1_601_155_608_777, 1))
        );
    }

    #[test]
    fn a_claim_out_of_range_matches_no_task() {
        let huge = "9".repeat(400);
        for text in ["1-0", "0-0", "1-131072", "4398046511104-1", "1-0@1.1", "1-1@4294967296.1"] {
            assert_eq!(Claim::parse(text.as_bytes()), Some(Claim::UNKNOWN), "{text}");
        }
        for form in ["#-1", "1-#", "#-#", "1-1@#.1", "1-1@1.#", "#-#@#.#"] {
            let text = form.replace('#', &huge);
            assert_eq!(Claim::parse(text.as_bytes()), Some(Claim::UNKNOWN), "{form}");
        }
        for bad in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "1-0x",
            "x1-0",
            "1-0@",
            "1-0@1",
            "1-0@1.",
            "1-0@.1",
            "1-0@1.1.1",
            "1-0@1.1x",
        ] {
            assert_eq!(Claim::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_full_millisecond_borrows_the_next() {
        let last = TaskId::new(5, SEQ_MAX).unwrap();
        assert_eq!(last.next(5), TaskId::new(6, 1));
        assert_eq!(last.next(4), TaskId::new(6, 1), "a clock that went back changes nothing");
        assert_eq!(last.next(9), TaskId::new(9, 1));
        assert_eq!(TaskId::new(MS_MAX, SEQ_MAX).unwrap().next(0), None);
    }

    #[test]
    fn the_nth_id_is_n_successors_away() {
        let first = TaskId::new(5, SEQ_MAX - 2).unwrap();
        let mut walked = first;
        for n in 0..10 {
            assert_eq!(first.nth(n), Some(walked));
            walked = walked.successor().unwrap();
        }
        assert_eq!(first.nth(u64::MAX), None);
    }

    #[test]
    fn the_longest_receipt_has_room() {
        let id = TaskId::new(MS_MAX, SEQ_MAX).unwrap();
        let receipt = Receipt { id, incarnation: u64::MAX, delivery: u32::MAX };
        assert_eq!(IdText::of(receipt).as_bytes(), receipt.to_string().as_bytes());
        assert_eq!(IdText::of_receipt(receipt).as_bytes(), receipt.to_string().as_bytes());
    }

    proptest! {
        #[test]
        fn every_text_form_parses_back(ms in 0..=MS_MAX, seq in 1..=SEQ_MAX, n: u32, e: u64) {
            let id = TaskId::new(ms, seq).unwrap();
            prop_assert_eq!(TaskId::parse(id.to_string().as_bytes()), Some(id));
            let (short_cut, text) = (IdText::of_id(id), id.to_string());
            prop_assert_eq!(short_cut.as_bytes(), text.as_bytes());
            prop_assert_eq!(TaskId::parse_short(&id.short()), Some(id));
            prop_assert_eq!(TaskId::from_raw(id.raw()), Some(id));
            let receipt = Receipt { id, incarnation: e, delivery: n };
            prop_assert_eq!(Receipt::parse(receipt.to_string().as_bytes()), Some(receipt));
            let small = Receipt { incarnation: e >> (n % 64), delivery: n >> (e % 32), ..receipt };
            let (short_cut, text) = (IdText::of_receipt(small), small.to_string());
            prop_assert_eq!(short_cut.as_bytes(), text.as_bytes());
        }

        #[test]
        fn ids_around_september_2001_are_parsed_back(ms in 999_999_999_990..1_000_000_000_010u64, seq in 1..=SEQ_MAX) {
            let id = TaskId::new(ms, seq).unwrap();
            let (short_cut, text) = (IdText::of_id(id), id.to_string());
            prop_assert_eq!(short_cut.as_bytes(), text.as_bytes());
        }

        #[test]
        fn digits_end_at_the_first_other_byte(text in "[0-9]{0,25}[^0-9]?[0-9/:;]{0,9}") {
            let len = text.bytes().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
            let number = text[..len].parse().ok().filter(|_| len <= 19).map(|n: u64| (n, &text.as_bytes()[len..]));
            prop_assert_eq!(digits(text.as_bytes()), number);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = (Claim::parse(&bytes), TaskId::parse_short(&bytes));
        }

        #[test]
        fn the_order_of_ids_is_the_order_of_their_parts(a in 0..=MS_MAX, b in 0..=MS_MAX, s in 1..=SEQ_MAX, t in 1..=SEQ_MAX) {
            let (x, y) = (TaskId::new(a, s).unwrap(), TaskId::new(b, t).unwrap());
            prop_assert_eq!(x.cmp(&y), (a, s).cmp(&(b, t)));
        }
    }
}

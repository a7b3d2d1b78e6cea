//! The state of one task, in one byte, since a benchmark has tens of millions of them.

/// ```text
/// 7 invoked   6 confirmed   5 delivered   4 held without end   3 finished   2 timed   1-0 finishes without an answer
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry(u8);

impl Entry {
    /// Its push was sent and did not certainly fail.
    pub(crate) const INVOKED: Self = Self(0x80);
    /// Its push was confirmed.
    pub(crate) const CONFIRMED: Self = Self(0x40);
    /// It was delivered at least once.
    pub(crate) const DELIVERED: Self = Self(0x20);
    /// A client holds it until it is finished or released.
    pub(crate) const HELD: Self = Self(0x10);
    /// Its finish was confirmed.
    pub(crate) const FINISHED: Self = Self(0x08);
    /// It was delivered with a lease that ends by itself, so that times matter.
    pub(crate) const TIMED: Self = Self(0x04);

    const OPEN_FINISHES: u8 = 0x03;

    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn set(&mut self, flag: Self) {
        self.0 |= flag.0;
    }

    pub(crate) const fn clear(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }

    /// The number of finishes without a certain reply; 3 means 3 or more.
    pub(crate) const fn open_finishes(self) -> u8 {
        self.0 & Self::OPEN_FINISHES
    }

    pub(crate) const fn open_finish(&mut self) {
        if self.open_finishes() < Self::OPEN_FINISHES {
            self.0 += 1;
        }
    }

    /// Records a certain reply to a finish. A count of 3 stays, since it may mean more.
    pub(crate) const fn close_finish(&mut self) {
        if matches!(self.open_finishes(), 1..Self::OPEN_FINISHES) {
            self.0 -= 1;
        }
    }

    /// It must still be in the queue.
    pub(crate) const fn must_be_left(self) -> bool {
        self.has(Self::CONFIRMED) && !self.has(Self::FINISHED) && self.open_finishes() == 0
    }
}

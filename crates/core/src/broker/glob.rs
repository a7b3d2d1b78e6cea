//! Redis' glob patterns over names: `*`, `?`, `[a-z]`, `[^a]`, and `\` to escape a character.

use crate::meter;

/// Whether the pattern matches the whole name. Time is bounded by the product of their lengths: once a later star has
/// matched, an earlier one is never tried again.
pub fn glob_matches(pattern: &[u8], name: &[u8]) -> bool {
    Matching::new(pattern).matches(name)
}

/// Like [`glob_matches`], in at most `steps_left` steps, from which it subtracts the steps taken. `None` if they do
/// not suffice.
pub fn glob_matches_within(pattern: &[u8], name: &[u8], steps_left: &mut usize) -> Option<bool> {
    let mut matching = Matching::new(pattern);
    let matches = matching.matches_within(name, *steps_left);
    *steps_left = steps_left.saturating_sub(matching.steps);
    matches
}

/// A pattern that is matched against many names.
pub(super) struct Matching<'p> {
    pattern: &'p [u8],
    /// No bracket that opens from here on is closed.
    unclosed_from: usize,
    /// The number of bytes of the pattern that were examined.
    steps: usize,
}

enum Step {
    Star,
    /// The character matches the next n bytes of the pattern.
    Matched(usize),
    Failed,
}

impl<'p> Matching<'p> {
    pub(super) const fn new(pattern: &'p [u8]) -> Self {
        Self { pattern, unclosed_from: usize::MAX, steps: 0 }
    }

    /// The number of bytes of the pattern that were examined so far.
    pub(super) const fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn matches(&mut self, name: &[u8]) -> bool {
        self.matches_within(name, usize::MAX).expect("the number of steps is unlimited")
    }

    /// Returns `None` if more than `steps_max` steps would be taken in total.
    fn matches_within(&mut self, name: &[u8], steps_max: usize) -> Option<bool> {
        let (mut p, mut n) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            if self.steps >= steps_max {
                return None;
            }
            match self.one(p, name[n]) {
                Step::Star => {
                    star = Some((p + 1, n));
                    p += 1;
                    continue;
                }
                Step::Matched(len) => {
                    p += len;
                    n += 1;
                    continue;
                }
                Step::Failed => {}
            }
            let Some((after, from)) = star else { return Some(false) };
            // The star takes one more character, and the rest of the pattern is tried from there.
            star = Some((after, from + 1));
            (p, n) = (after, from + 1);
        }
        Some(self.pattern[p..].iter().all(|&c| c == b'*'))
    }

    fn one(&mut self, at: usize, c: u8) -> Step {
        meter::step();
        self.steps += 1;
        match &self.pattern[at..] {
            [] => Step::Failed,
            [b'*', ..] => Step::Star,
            [b'?', ..] => Step::Matched(1),
            [b'[', class @ ..] => match self.class_len(at, class) {
                Some(len) if in_class(&class[..len], c) => Step::Matched(len + 2),
                Some(_) => Step::Failed,
                None => literal(1, b'[', c),
            },
            [b'\\', escaped, ..] => literal(2, *escaped, c),
            [plain, ..] => literal(1, *plain, c),
        }
    }

    /// The length of the class that opens at `at`, up to its closing bracket. After a bracket that is never closed,
    /// no later bracket is closed either, so the rest of the pattern is searched only once.
    fn class_len(&mut self, at: usize, class: &[u8]) -> Option<usize> {
        if at >= self.unclosed_from {
            return None;
        }
        let mut end = 0;
        while end < class.len() {
            meter::step();
            self.steps += 1;
            match class[end] {
                b']' => return Some(end),
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        self.unclosed_from = at;
        None
    }
}

const fn literal(len: usize, expected: u8, c: u8) -> Step {
    if expected == c { Step::Matched(len) } else { Step::Failed }
}

fn in_class(class: &[u8], c: u8) -> bool {
    let (negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let mut found = false;
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'\\', [escaped, tail @ ..]) => {
                found |= *escaped == c;
                tail
            }
            (low, [b'-', high, tail @ ..]) => {
                found |= (*low.min(high)..=*low.max(high)).contains(&c);
                tail
            }
            (plain, tail) => {
                found |= *plain == c;
                tail
            }
        };
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::{Matching, glob_matches, glob_matches_within};

    fn check(pattern: &str, name: &str, expected: bool) {
        assert_eq!(glob_matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern:?} on {name:?}");
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "x"),
            ("h?llo", "hello"),
            ("h*llo", "heeeello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("h[b-a]llo", "hallo"),
            (r"\*", "*"),
            (r"[\]]", "]"),
            ("a*b*c", "axxbyyc"),
            ("[", "["),
        ] {
            check(pattern, name, true);
        }
        for (pattern, name) in [
            ("", "x"),
            ("?", ""),
            ("h[^e]llo", "hello"),
            ("a*b*c", "axxbyyd"),
            (r"\*", "x"),
            ("[abc", "a"),
            ("ab", "abc"),
        ] {
            check(pattern, name, false);
        }
    }

    #[test]
    fn searches_the_end_of_an_unclosed_bracket_once() {
        for pattern in ["*[".to_owned() + &"a".repeat(100_000), "[".repeat(100_000), "*[\\]".repeat(50_000)] {
            let name = "[".repeat(4_000) + "x";
            let mut matching = Matching::new(pattern.as_bytes());
            assert!(!matching.matches(name.as_bytes()), "{}", &pattern[..9]);
            assert!(matching.steps() <= 2 * pattern.len() + 4 * name.len(), "{} steps", matching.steps());
        }
        check("*[[[", "a[[[", true);
        check("[[]", "[", true);
    }

    #[test]
    fn matching_ends_when_its_steps_are_used_up() {
        let (pattern, name) = ("*".to_owned() + &"a".repeat(1_000) + "b", "a".repeat(2_000));
        let mut left = usize::MAX;
        let within = |left: &mut usize| glob_matches_within(pattern.as_bytes(), name.as_bytes(), left);
        assert_eq!(within(&mut left), Some(false));
        let steps = usize::MAX - left;
        assert!(steps > 1_000_000, "{steps} steps");
        for (mut left, expected) in [(steps + 7, (Some(false), 7)), (steps - 1, (None, 0)), (0, (None, 0))] {
            assert_eq!((within(&mut left), left), expected);
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(60) + "b";
        check(&pattern, &"a".repeat(5_000), false);
    }
}

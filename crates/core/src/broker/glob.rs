//! Redis' glob patterns over names: `*`, `?`, `[a-z]`, `[^a]`, and `\` to take a character as it is.

/// Whether the pattern matches all of the name. Time is bounded by the product of their lengths: a star that was
/// tried is never tried again once a later one has matched.
pub fn glob_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match one(&pattern[p..], name[n]) {
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
        let Some((after, from)) = star else { return false };
        // The star takes one more character, and what is behind it is tried from there.
        star = Some((after, from + 1));
        (p, n) = (after, from + 1);
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

enum Step {
    Star,
    /// The character matches the first so many bytes of the pattern.
    Matched(usize),
    Failed,
}

fn one(pattern: &[u8], c: u8) -> Step {
    match pattern {
        [] => Step::Failed,
        [b'*', ..] => Step::Star,
        [b'?', ..] => Step::Matched(1),
        [b'[', class @ ..] => match class_len(class) {
            Some(len) if in_class(&class[..len], c) => Step::Matched(len + 2),
            Some(_) => Step::Failed,
            None => literal(1, b'[', c),
        },
        [b'\\', escaped, ..] => literal(2, *escaped, c),
        [plain, ..] => literal(1, *plain, c),
    }
}

const fn literal(len: usize, expected: u8, c: u8) -> Step {
    if expected == c { Step::Matched(len) } else { Step::Failed }
}

/// How long the class is, up to its closing bracket.
fn class_len(class: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < class.len() {
        match class[at] {
            b']' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
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
    use super::glob_matches;

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
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(60) + "b";
        check(&pattern, &"a".repeat(5_000), false);
    }
}

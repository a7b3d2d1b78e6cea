//! The arguments of a command as data, from which its arity, its keys, its syntax line, HELP, COMMAND DOCS and the
//! reading and writing of its options are derived.

use std::ops::RangeInclusive;

use super::code::Code;
use sureq_core::limits::SPAN_MS_MAX;

#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// The name in the syntax line.
    pub name: &'static str,
    pub kind: Kind,
    /// How often the argument can be given.
    pub count: Count,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The name of a queue.
    Key,
    /// Any bytes.
    Text,
    Pattern,
    /// The id of a task; also a receipt if the name of the argument says so.
    Task,
    /// `name#n`, an incarnation of a worker.
    Worker,
    /// A whole number in this range.
    Number(u64, u64),
    /// A whole number in this range, which may be negative.
    Signed(i64, i64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Options in any order.
    Options(&'static Options),
    /// One of these alternatives, each with its own keyword.
    OneOf(&'static [Opt]),
    /// These arguments, one after the other.
    Block(&'static [Arg]),
    /// Words that are accepted and ignored. They are not documented.
    Ignored,
}

/// How often an argument can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    One,
    /// Once or not at all.
    Optional,
    /// Once or more.
    Many,
    /// Any number of times.
    Any,
}

/// The options of a command, and the pairs of them that exclude each other.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The options in the order of the syntax line.
    pub list: &'static [Opt],
    /// Pairs that exclude each other, by their indexes in the list.
    exclusive: [(usize, usize); EXCLUSIVE_MAX],
    exclusive_len: usize,
    /// The names as numbers, so that a lookup takes only a few comparisons.
    codes: [Code; OPTIONS_MAX],
    /// A bit for each length that a name has. Most words that are no option have another.
    lengths: u32,
}

/// The largest number of options of a command.
pub(super) const OPTIONS_MAX: usize = 8;

/// The largest number of pairs of options that exclude each other.
const EXCLUSIVE_MAX: usize = 4;

/// A keyword with the arguments after it.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The keyword in capitals; empty for an alternative that needs none.
    pub name: &'static str,
    /// The arguments after the keyword; empty for a flag.
    pub args: &'static [Arg],
    /// Whether it can be given only together with the option before it in the list.
    pub is_nested: bool,
}

impl Arg {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, count: Count::One }
    }

    pub(super) const fn key() -> Self {
        Self::new("key", Kind::Key)
    }

    pub(super) const fn text(name: &'static str) -> Self {
        Self::new(name, Kind::Text)
    }

    pub(super) const fn pattern(name: &'static str) -> Self {
        Self::new(name, Kind::Pattern)
    }

    pub(super) const fn task(name: &'static str) -> Self {
        Self::new(name, Kind::Task)
    }

    pub(super) const fn worker(name: &'static str) -> Self {
        Self::new(name, Kind::Worker)
    }

    pub(super) const fn number(name: &'static str, range: RangeInclusive<u64>) -> Self {
        Self::new(name, Kind::Number(*range.start(), *range.end()))
    }

    pub(super) const fn signed(name: &'static str, range: RangeInclusive<i64>) -> Self {
        Self::new(name, Kind::Signed(*range.start(), *range.end()))
    }

    /// A duration in milliseconds, which may be 0.
    pub(super) const fn span(name: &'static str) -> Self {
        Self::number(name, 0..=SPAN_MS_MAX)
    }

    /// A duration of at least one millisecond.
    pub(super) const fn lasting(name: &'static str) -> Self {
        Self::number(name, 1..=SPAN_MS_MAX)
    }

    pub(super) const fn word(words: &'static [&'static str]) -> Self {
        Self::new("", Kind::Word(words))
    }

    pub(super) const fn options(options: &'static Options) -> Self {
        Self::new("", Kind::Options(options))
    }

    pub(super) const fn one_of(alternatives: &'static [Opt]) -> Self {
        Self::new("", Kind::OneOf(alternatives))
    }

    pub(super) const fn block(args: &'static [Self]) -> Self {
        Self::new("", Kind::Block(args))
    }

    /// Any further words, which are ignored.
    pub(super) const IGNORED: Self = Self { name: "", kind: Kind::Ignored, count: Count::Any };

    pub(super) const fn optional(self) -> Self {
        Self { count: Count::Optional, ..self }
    }

    pub(super) const fn many(self) -> Self {
        Self { count: Count::Many, ..self }
    }

    pub(super) const fn any(self) -> Self {
        Self { count: Count::Any, ..self }
    }
}

impl Opt {
    /// A keyword with one value.
    pub(super) const fn value(name: &'static str, args: &'static [Arg; 1]) -> Self {
        Self { name, args, is_nested: false }
    }

    /// A keyword with these arguments.
    pub(super) const fn args(name: &'static str, args: &'static [Arg]) -> Self {
        Self { name, args, is_nested: false }
    }

    /// A keyword alone.
    pub(super) const fn flag(name: &'static str) -> Self {
        Self { name, args: &[], is_nested: false }
    }

    /// The same option, nested in the brackets of the option before it.
    pub(super) const fn nested(self) -> Self {
        Self { is_nested: true, ..self }
    }
}

impl Options {
    /// A list of options. Neighbours that exclude each other are shown as alternatives.
    pub(super) const fn new(list: &'static [Opt], exclusive: &[(&str, &str)]) -> Self {
        let codes = [Code { len: 0, first: 0, last: 0 }; OPTIONS_MAX];
        let mut options = Self {
            list,
            exclusive: [(0, 0); EXCLUSIVE_MAX],
            exclusive_len: exclusive.len(),
            codes,
            lengths: 0,
        };
        let mut at = 0;
        while at < exclusive.len() {
            options.exclusive[at] = (options.at(exclusive[at].0), options.at(exclusive[at].1));
            at += 1;
        }
        at = 0;
        while at < list.len() {
            options.codes[at] = Code::of(list[at].name.as_bytes()).expect("a name is short enough");
            options.lengths |= 1 << list[at].name.len();
            at += 1;
        }
        options
    }

    /// The index of an option in the list.
    pub(super) const fn at(&self, name: &str) -> usize {
        let mut at = 0;
        while !is_equal(self.list[at].name, name) {
            at += 1;
        }
        at
    }

    /// The index of the option with this word.
    #[inline]
    pub(super) fn find(&self, word: &[u8]) -> Option<usize> {
        // No name has 31 bytes or more.
        if self.lengths >> word.len().min(31) & 1 == 0 {
            return None;
        }
        let code = Code::of(word)?;
        self.codes.iter().position(|known| *known == code)
    }

    /// Pairs that exclude each other, by their indexes in the list.
    pub fn exclusive(&self) -> &[(usize, usize)] {
        &self.exclusive[..self.exclusive_len]
    }

    fn are_exclusive(&self, one: usize, other: usize) -> bool {
        self.exclusive().iter().any(|&pair| pair == (one, other) || pair == (other, one))
    }
}

const fn is_equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    if one.len() != other.len() {
        return false;
    }
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The number of words of a command with these arguments and `names` words for its name. A negative number is a
/// minimum.
pub(super) const fn arity(names: i32, args: &[Arg]) -> i32 {
    let (least, is_exact) = words(args);
    if is_exact { names + least } else { -(names + least) }
}

/// The minimum number of words, and whether it is also the maximum.
const fn words(args: &[Arg]) -> (i32, bool) {
    let (mut least, mut is_exact, mut at) = (0, true, 0);
    while at < args.len() {
        let (own, own_is_exact) = match args[at].kind {
            Kind::Options(_) | Kind::Ignored => (0, false),
            Kind::Block(args) => words(args),
            Kind::OneOf(alternatives) => (least_of(alternatives), false),
            _ => (1, true),
        };
        match args[at].count {
            Count::One => {
                least += own;
                is_exact &= own_is_exact;
            }
            Count::Many => {
                least += own;
                is_exact = false;
            }
            Count::Optional | Count::Any => is_exact = false,
        }
        at += 1;
    }
    (least, is_exact)
}

const fn least_of(alternatives: &[Opt]) -> i32 {
    let (mut least, mut at) = (i32::MAX, 0);
    while at < alternatives.len() {
        let own = words(alternatives[at].args).0 + if alternatives[at].name.is_empty() { 0 } else { 1 };
        if own < least {
            least = own;
        }
        at += 1;
    }
    least
}

/// The positions of a command's keys, as COMMAND INFO reports them: 0 for none; a negative last position counts from
/// the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    pub first: i8,
    pub last: i8,
    /// The distance between two keys.
    pub step: i8,
}

/// The positions of the keys in these arguments. Keys after options have no fixed position and are not reported.
pub(super) const fn keys(args: &[Arg]) -> Keys {
    let mut at = 0;
    while at < args.len() {
        match args[at] {
            Arg { kind: Kind::Key, count: Count::One, .. } => {
                let place = at as i8 + 1;
                return Keys { first: place, last: place, step: 1 };
            }
            Arg { kind: Kind::Key, count: Count::Many, .. } => {
                return Keys { first: at as i8 + 1, last: -1, step: 1 };
            }
            Arg { count: Count::One, kind: Kind::Options(_) | Kind::OneOf(_) | Kind::Block(_), .. } => break,
            Arg { count: Count::One, .. } => at += 1,
            _ => break,
        }
    }
    Keys { first: 0, last: 0, step: 0 }
}

/// The notation of a syntax line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    /// `key payload [payload ...]`, in documents.
    Plain,
    /// `<key> <payload> ...`, in HELP.
    Angled,
}

/// The arguments as a syntax line, with a space before each.
pub(super) fn syntax(args: &[Arg], style: Syntax) -> String {
    let mut text = String::new();
    for arg in args {
        let own = arg_syntax(arg, style);
        if !own.is_empty() {
            text.push(' ');
            text.push_str(&own);
        }
    }
    text
}

fn arg_syntax(arg: &Arg, style: Syntax) -> String {
    let text = match arg.kind {
        Kind::Ignored => return String::new(),
        Kind::Options(options) => return options_syntax(options, style),
        Kind::Word(words) => words.join("|"),
        Kind::OneOf(alternatives) => {
            let texts: Vec<String> = alternatives.iter().map(|opt| opt_syntax(opt, style)).collect();
            let text = texts.join(" | ");
            if arg.count == Count::One { format!("({text})") } else { text }
        }
        Kind::Block(args) => syntax(args, style).trim_start().to_owned(),
        _ if style == Syntax::Angled => format!("<{}>", arg.name),
        _ => arg.name.to_owned(),
    };
    match (arg.count, style) {
        (Count::One, _) => text,
        (Count::Optional, _) => format!("[{text}]"),
        (Count::Many, Syntax::Plain) => format!("{text} [{text} ...]"),
        (Count::Many, Syntax::Angled) => format!("{text} ..."),
        (Count::Any, _) => format!("[{text} ...]"),
    }
}

fn options_syntax(options: &Options, style: Syntax) -> String {
    let mut text = String::new();
    let mut open = false;
    for (at, opt) in options.list.iter().enumerate() {
        let is_alternative = at > 0 && options.are_exclusive(at - 1, at);
        if is_alternative {
            text.push('|');
        } else if opt.is_nested {
            text.push_str(" [");
        } else {
            if open {
                text.push_str("] ");
            }
            text.push('[');
        }
        open = true;
        text.push_str(&opt_syntax(opt, style));
        if opt.is_nested && !is_alternative {
            text.push(']');
        }
    }
    text.push(']');
    text
}

fn opt_syntax(opt: &Opt, style: Syntax) -> String {
    format!("{}{}", opt.name, syntax(opt.args, style)).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOURS: Options = Options::new(
        &[
            Opt::value("RED", &[Arg::span("n")]),
            Opt::flag("GREEN"),
            Opt::value("WITH", &[Arg::text("what")]),
            Opt::flag("MORE").nested(),
        ],
        &[("RED", "GREEN")],
    );

    fn check(args: &[Arg], plain: &str, angled: &str, arity_and_keys: (i32, (i8, i8))) {
        assert_eq!(syntax(args, Syntax::Plain).trim_start(), plain);
        assert_eq!(syntax(args, Syntax::Angled).trim_start(), angled);
        let keys = keys(args);
        assert_eq!((arity(1, args), (keys.first, keys.last)), arity_and_keys, "{plain}");
    }

    #[test]
    fn syntax_arity_and_keys_follow_from_the_arguments() {
        check(&[Arg::key(), Arg::text("x").many()], "key x [x ...]", "<key> <x> ...", (-3, (1, 1)));
        check(&[Arg::key().many()], "key [key ...]", "<key> ...", (-2, (1, -1)));
        check(&[Arg::text("x").optional(), Arg::text("y")], "[x] y", "[<x>] <y>", (-2, (0, 0)));
        check(&[Arg::word(&["A", "B"]), Arg::key()], "A|B key", "A|B <key>", (3, (2, 2)));
        let options = [Arg::options(&COLOURS), Arg::key().many()];
        let plain = "[RED n|GREEN] [WITH what [MORE]] key [key ...]";
        check(&options, plain, "[RED <n>|GREEN] [WITH <what> [MORE]] <key> ...", (-2, (0, 0)));
        let alternatives: &[Opt] = &[Opt::flag("ALL"), Opt::args("", &[Arg { count: Count::Many, ..ID }])];
        check(
            &[Arg::key(), Arg { kind: Kind::OneOf(leak(alternatives)), ..ID }],
            "key (ALL | id [id ...])",
            "<key> (ALL | <id> ...)",
            (-3, (1, 1)),
        );
        check(&[Arg::IGNORED], "", "", (-1, (0, 0)));
    }

    const ID: Arg = Arg::task("id");

    fn leak(alternatives: &[Opt]) -> &'static [Opt] {
        Box::leak(alternatives.into())
    }
}

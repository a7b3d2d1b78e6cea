//! The declarations of the commands are consistent: any words that a declaration allows can be parsed, name the
//! queues that the declaration says, and are the same when the command is encoded again.

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use sureq_core::command::{self, ConnId};
use sureq_proto::resp::{Args, Limits, Parser};
use sureq_proto::verbs::{Arg, Caller, Count, Kind, Opt, Options, Request, Row, TABLE, parse, queues_of};
use sureq_proto::{ReplyStyle, encode_command};

const CALLER: Caller = Caller { conn: ConnId(7) };

/// A source of choices from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn is(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// The words of a command, and which of them are keys.
#[derive(Default)]
struct Words {
    words: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
}

impl Words {
    fn word(&mut self, word: impl Into<Vec<u8>>) {
        self.words.push(word.into());
    }

    fn args(&mut self, args: &[Arg], dice: &mut Dice) {
        for arg in args {
            let times = match arg.count {
                Count::One => 1,
                Count::Optional => dice.below(2),
                Count::Many => 1 + dice.below(3),
                // A setting can be given only once.
                Count::Any if matches!(arg.kind, Kind::Block(_)) => dice.below(2),
                Count::Any => dice.below(3),
            };
            for _ in 0..times {
                self.arg(arg, dice);
            }
        }
    }

    fn arg(&mut self, arg: &Arg, dice: &mut Dice) {
        match arg.kind {
            Kind::Key => {
                let key = format!("queue{}", dice.below(5));
                self.keys.push(key.clone().into());
                self.word(key);
            }
            Kind::Text => self.word(match arg.name {
                "option" => "TRIES".to_owned(),
                "value" => "5".to_owned(),
                _ => format!("t{}", dice.below(100)),
            }),
            Kind::Pattern => self.word(["*", "a*", "[b-c]?"][dice.below(3)]),
            Kind::Task => self.word(["1-1", "1601155608777-2", "1-1@1.7"][dice.below(3)]),
            Kind::Worker => self.word(["w#1", "a#b#18446744073709551615"][dice.below(2)]),
            Kind::Number(low, high) => self.word([low, high, low.midpoint(high)][dice.below(3)].to_string()),
            Kind::Signed(low, high) => self.word([low, high, -1][dice.below(3)].to_string()),
            Kind::Word(words) => self.word(words[dice.below(words.len())]),
            Kind::Options(options) => self.options(options, dice),
            Kind::OneOf(alternatives) => self.opt(&alternatives[dice.below(alternatives.len())], dice),
            Kind::Block(args) => self.args(args, dice),
            Kind::Ignored => {}
        }
    }

    fn opt(&mut self, opt: &Opt, dice: &mut Dice) {
        if !opt.name.is_empty() {
            self.word(if dice.is() { opt.name.to_owned() } else { opt.name.to_ascii_lowercase() });
        }
        self.args(opt.args, dice);
    }

    /// Some of the options in any order, none of which exclude each other. A nested option is only chosen together
    /// with its outer one.
    fn options(&mut self, options: &Options, dice: &mut Dice) {
        let mut given: Vec<usize> = Vec::new();
        for (at, opt) in options.list.iter().enumerate() {
            if opt.is_nested && given.contains(&(at - 1)) && dice.is() {
                given = vec![at - 1, at];
            }
            let excludes = |&(one, other): &(usize, usize)| {
                (one == at && given.contains(&other)) || (other == at && given.contains(&one))
            };
            if !opt.is_nested && dice.is() && !options.exclusive().iter().any(excludes) {
                given.push(at);
            }
        }
        while !given.is_empty() {
            let at = given.swap_remove(dice.below(given.len()));
            self.opt(&options.list[at], dice);
        }
    }
}

fn words_of(row: &Row, dice: &mut Dice) -> Words {
    let mut words = Words::default();
    words.word(row.name);
    match row.subs {
        [] => words.args(row.args, dice),
        subs => {
            let sub = &subs[dice.below(subs.len())];
            words.word(sub.name);
            words.args(sub.args, dice);
        }
    }
    words
}

/// Decodes the output of [`encode_command`] again.
fn read_back(command: &command::Command<'_>, check: impl FnOnce(&command::Command<'_>)) {
    let mut out = Vec::new();
    encode_command(&mut out, command).expect("a parsed command can be encoded");
    let (mut unquoted, mut args) = (Vec::new(), Args::default());
    Parser::new(Limits::TRUSTED).parse(&out, &mut unquoted, &mut args).expect("it is RESP");
    let Ok(Request::Home { command, style: ReplyStyle::Native }) = parse(args.command(0), CALLER) else {
        panic!("{command:?} comes back as something else")
    };
    check(&command);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn words_that_a_declaration_allows_can_be_parsed_and_encoded_again(row in 0..TABLE.len(), seed: u64) {
        let Words { words, keys } = words_of(&TABLE[row], &mut Dice(seed));
        let argv: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let line = String::from_utf8_lossy(&argv.join(&b' ')).into_owned();
        let request = parse(&argv, CALLER).unwrap_or_else(|no| panic!("{line}: {no}"));
        let Request::Home { command, .. } = request else {
            prop_assert!(keys.is_empty(), "{}", line);
            return Ok(());
        };
        let named: Vec<&[u8]> = queues_of(&command).collect();
        prop_assert_eq!(&named, &keys, "{}", line);
        let first = usize::try_from(TABLE[row].keys().first).expect("a place");
        prop_assert!(first == 0 || argv[first] == keys[0], "{}", line);
        read_back(&command, |read| assert_eq!(format!("{read:?}"), format!("{command:?}"), "{line}"));
    }
}

/// The words of an example as redis-cli reads them, without the prompt `> `.
fn split(line: &str) -> Vec<Vec<u8>> {
    let (mut unquoted, mut args) = (Vec::new(), Args::default());
    let line = format!("{line}\r\n");
    Parser::new(Limits::TRUSTED).parse(line.as_bytes(), &mut unquoted, &mut args).expect("a line");
    args.command(0).iter().map(|word| word.to_vec()).collect()
}

#[test]
fn every_example_can_be_parsed_and_shows_its_command() {
    for row in TABLE {
        let lines: Vec<_> =
            row.example.lines().filter_map(|line| line.strip_prefix("> ")).map(split).collect();
        assert!(lines.iter().any(|words| words[0] == row.name.as_bytes()), "{}", row.name);
        for words in lines {
            let argv: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            assert!(parse(&argv, CALLER).is_ok(), "{}: {argv:?}", row.name);
        }
    }
}

#[test]
fn syntax_lines_follow_from_the_declarations() {
    let syntax = |name: &str| sureq_proto::verbs::find(name.as_bytes()).expect("a command").syntax();
    for line in [
        "RQ.PUSH key payload [payload ...]",
        "RQ.POP [COUNT n] [BLOCK ms] [LEASE ms] [WORKER w#n|CONN] [META] key [key ...]",
        "RQ.ADD key payload [NAME name] [DELAY ms|AT unix-ms] [PRIORITY n] [TRIES n] [BACKOFF ms] [TTL ms] [UNIQUE]",
        "RQ.RETURN key id|receipt [DELAY ms|FRONT|BACK] [FAILED reason [DEAD]]",
        "RQ.CANCEL key (ID id [id ...] | NAME name [name ...] | PAYLOAD payload)",
        "RQ.REVIVE key (ALL | id [id ...])",
        "RQ.INSPECT key [PENDING|DELAYED|DEAD] start count",
        "RQ.CONFIG key [option value ...]",
        "HELLO [protover [AUTH username password] [SETNAME clientname]]",
        "COMMAND [subcommand [argument ...]]",
        "ACL WHOAMI",
        "QUIT",
    ] {
        let name = line.split(' ').next().expect("a line has a word");
        assert_eq!(syntax(name), line);
    }
}

/// The patch adds a command, RQ.WAITING, by the list in CONTRIBUTING.md. `./test` compiles a copy of the sources with
/// it.
#[test]
fn a_command_is_added_by_the_eight_files_that_contributing_lists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let patch = include_str!("add_a_command.patch");
    let files: Vec<&str> = patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
    assert_eq!(files.len(), 8, "{files:?}");
    let text = std::fs::read_to_string(root.join("CONTRIBUTING.md")).expect("it is there");
    let list =
        text.split("## Add a command").nth(1).and_then(|rest| rest.split("Some commands need more").next());
    let list = list.expect("it has the section");
    for file in files {
        assert!(list.contains(&format!("`{file}`")), "CONTRIBUTING.md does not list {file}");
    }
    let check = ["apply", "--check", "-C1", "crates/proto/tests/add_a_command.patch"];
    let output = Command::new("git").args(check).current_dir(&root).output().expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

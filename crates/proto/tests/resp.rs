//! RESP requests: which bytes are commands, which are errors, and that the split of the bytes into reads does not
//! matter.

use proptest::prelude::*;
use sureq_proto::resp::{Args, Limits, Parser, ProtocolError};

/// The result of feeding bytes to a connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    /// The bytes that are not a whole command yet.
    rest: Vec<u8>,
}

/// Feeds the pieces to one connection, as a session does.
fn parse_all<'p>(limits: Limits, pieces: impl IntoIterator<Item = &'p [u8]>) -> Parsed {
    let (mut parser, mut unquoted, mut room) = (Parser::new(limits), Vec::new(), Args::default());
    let mut parsed = Parsed::default();
    for piece in pieces {
        parsed.rest.extend_from_slice(piece);
        loop {
            let mut args = room;
            let outcome = parser.parse(&parsed.rest, &mut unquoted, &mut args);
            parsed.commands.extend(args.iter().map(|argv| argv.iter().map(|arg| arg.to_vec()).collect()));
            let ends = (0..args.len()).map(|n| args.end(n)).collect::<Vec<_>>();
            assert!(ends.is_sorted(), "commands lie in order");
            room = args.renew();
            match outcome {
                Ok(progress) => {
                    assert!(ends.last().is_none_or(|&end| end <= progress.consumed));
                    parsed.rest.drain(..progress.consumed);
                    if !progress.more {
                        break;
                    }
                    assert!(progress.consumed > 0, "more without progress would never end");
                }
                Err(error) => {
                    parsed.error = Some(error);
                    parsed.rest.clear();
                    return parsed;
                }
            }
        }
    }
    parsed
}

fn whole(input: &[u8]) -> Parsed {
    parse_all(Limits::TRUSTED, [input])
}

/// Checks the commands, with their words joined by `|`, and the error, if any.
fn check(input: impl AsRef<[u8]>, commands: &[&str], error: Option<&str>) {
    let input = input.as_ref();
    let parsed = whole(input);
    let joined: Vec<String> =
        parsed.commands.iter().map(|argv| String::from_utf8_lossy(&argv.join(&b'|')).into_owned()).collect();
    let shown = String::from_utf8_lossy(&input[..input.len().min(80)]).into_owned();
    assert_eq!(joined, commands, "{shown:?}");
    assert_eq!(
        parsed.error.map(|error| error.to_string()),
        error.map(|e| format!("Protocol error: {e}")),
        "{shown:?}"
    );
}

#[test]
fn arrays_of_bulks_are_commands() {
    check("*1\r\n$4\r\nPING\r\n", &["PING"], None);
    check("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &["ECHO|"], None);
    check("*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n", &["ECHO|\r\n\r\n"], None);
    check(
        "*2\r\n$4\r\nECHO\r\n$12\r\nhello world!\r\n*1\r\n$4\r\nPING\r\n",
        &["ECHO|hello world!", "PING"],
        None,
    );
    check(
        format!("*2\r\n$4\r\nECHO\r\n$100\r\n{}\r\n", "x".repeat(100)),
        &[&format!("ECHO|{}", "x".repeat(100))],
        None,
    );
}

#[test]
fn unfinished_commands_wait_for_more_bytes() {
    for part in [
        "",
        "*",
        "*1",
        "*1\r",
        "*1\r\n",
        "*1\r\n$",
        "*1\r\n$4\r\nPIN",
        "*1\r\n$4\r\nPING",
        "*1\r\n$4\r\nPING\r",
        "PING",
        "PING\r",
    ] {
        check(part, &[], None);
        assert_eq!(whole(part.as_bytes()).rest, part.as_bytes());
    }
}

#[test]
fn empty_requests_are_skipped() {
    check("*0\r\n*-1\r\n*-9\r\n\r\n\n  \t\r\n\"\"\r\n*1\r\n$4\r\nPING\r\n", &["", "PING"], None);
}

#[test]
fn inline_commands_are_split_like_in_redis() {
    check("PING\r\nPING\n  ECHO   a\tb \r\n", &["PING", "PING", "ECHO|a|b"], None);
    check("ECHO \"a b\\x41\\n\" 'it\\'s'\r\n", &["ECHO|a bA\n|it's"], None);
    check("ECHO \"a b\"\nECHO 'c d'\nECHO e\n", &["ECHO|a b", "ECHO|c d", "ECHO|e"], None);
    check("ECHO \"a\r\n", &[], Some("unbalanced quotes in request"));
    check("PING\nECHO 'a'b\n", &["PING"], Some("unbalanced quotes in request"));
    check("ECHO a\0b\n", &["ECHO|a\0b"], None);
}

#[test]
fn bad_counts_are_redis_errors() {
    for bad in [
        "*abc\r\n",
        "*\r\n",
        "*+1\r\n",
        "* 1\r\n",
        "*1 \r\n",
        "*01\r\n",
        "*-\r\n",
        "*-0\r\n",
        "*1\n$4\nPING\n",
        "*1\rx",
    ] {
        check(bad, &[], Some("invalid multibulk length"));
    }
    for bad in ["*1048577\r\n", "*2147483648\r\n", "*99999999999999999999\r\n", "*18446744073709551617\r\n"] {
        check(bad, &[], Some("invalid multibulk length"));
    }
    check("*1048576\r\n", &[], None);
    check(format!("*{}", "1".repeat(65)), &[], Some("too big mbulk count string"));
    check(format!("*-{}", "1".repeat(65)), &[], Some("too big mbulk count string"));
    check(format!("*{}\r\n", "1".repeat(65)), &[], Some("too big mbulk count string"));
    check(format!("*{}\r\n", "1".repeat(64)), &[], Some("invalid multibulk length"));
}

#[test]
fn bad_lengths_are_redis_errors() {
    for bad in
        ["$abc\r\n", "$\r\n", "$+1\r\n", "$ 1\r\n", "$01\r\n", "$-1\r\n", "$-2\r\n", "$4\nPING\n", "$1\rx"]
    {
        check(format!("*1\r\n{bad}"), &[], Some("invalid bulk length"));
    }
    for bad in
        ["$67108865\r\n", "$536870912\r\n", "$99999999999999999999\r\n", "$18446744073709551620\r\nPING\r\n"]
    {
        check(format!("*1\r\n{bad}"), &[], Some("invalid bulk length"));
    }
    check("*1\r\n$67108864\r\n", &[], None);
    check(format!("*1\r\n${}", "1".repeat(65)), &[], Some("too big bulk count string"));
    check("*1\r\n$3\r\nPING\r\n", &[], Some("expected CRLF after a bulk"));
    check("*1\r\n$5\r\nPING\r\n\r", &[], Some("expected CRLF after a bulk"));
    check("*1\r\n$4\r\nPING\rx", &[], Some("expected CRLF after a bulk"));
    check("*1\r\n$4\r\nPINGx\n", &[], Some("expected CRLF after a bulk"));
}

#[test]
fn the_error_for_a_missing_bulk_names_the_byte_found() {
    check("*1\r\n:5\r\n", &[], Some("expected '$', got ':'"));
    check("*1\r\n*1\r\n", &[], Some("expected '$', got '*'"));
    check("*1\r\nPING\r\n", &[], Some("expected '$', got 'P'"));
    check("*2\r\n$4\r\nPING\r\n\r\n", &[], Some("expected '$', got '?'"));
    check("*1\r\n\x00", &[], Some("expected '$', got '?'"));
    check("*1\r\n*1\r\n".repeat(10_000), &[], Some("expected '$', got '*'"));
}

#[test]
fn commands_before_an_error_are_parsed() {
    check("*1\r\n$4\r\nPING\r\nPING\n*x\r\n", &["PING", "PING"], Some("invalid multibulk length"));
}

#[test]
fn a_command_is_bounded_as_a_whole() {
    let limits = Limits { command_bytes_max: 100, ..Limits::TRUSTED };
    let fits = format!("*2\r\n$4\r\nECHO\r\n$78\r\n{}\r\n", "x".repeat(78));
    assert_eq!(parse_all(limits, [fits.as_bytes()]).commands.len(), 1);
    assert_eq!(parse_all(limits, [fits.repeat(3).as_bytes()]).commands.len(), 3, "each for itself");
    let over = b"*3\r\n$40\r\n0123456789012345678901234567890123456789\r\n$50\r\n";
    assert_eq!(parse_all(limits, [&over[..]]).error, Some(ProtocolError::CommandTooBig));
}

#[test]
fn a_long_inline_command_is_refused_wherever_its_end_is() {
    let limits = Limits { inline_bytes_max: 8, ..Limits::TRUSTED };
    assert_eq!(parse_all(limits, [&b"12345678\n"[..]]).commands.len(), 1);
    assert_eq!(parse_all(limits, [&b"12345678"[..]]).error, None);
    for long in [&b"123456789\n"[..], b"123456789", b"123456789012345678901"] {
        assert_eq!(parse_all(limits, [long]).error, Some(ProtocolError::InlineTooBig));
    }
}

#[test]
fn http_and_tls_are_refused_before_any_later_command() {
    for http in [
        "POST / HTTP/1.1\r\n",
        "GET /x HTTP/1.0\n",
        "post\r\n",
        "POST x\n",
        "Host: localhost\r\n",
        "hOST:x\n",
    ] {
        let parsed = whole(format!("{http}*1\r\n$4\r\nPING\r\nPING\r\n").as_bytes());
        assert_eq!((parsed.commands.len(), parsed.error), (0, Some(ProtocolError::Http)), "{http:?}");
    }
    assert!(!ProtocolError::Http.is_reported());
    check("ECHO HTTP/1.1\nGET x\n", &["ECHO|HTTP/1.1", "GET|x"], None);
    assert_eq!(whole(b"\x16\x03\x01\x02\x00").error, Some(ProtocolError::Tls));
}

#[test]
fn limits_are_low_before_authentication() {
    let error =
        |input: &str| parse_all(Limits::UNAUTHENTICATED, [input.as_bytes()]).error.map(|e| e.to_string());
    assert_eq!(error("*11\r\n").as_deref(), Some("Protocol error: unauthenticated multibulk length"));
    assert_eq!(error("*1\r\n$16385\r\n").as_deref(), Some("Protocol error: unauthenticated bulk length"));
    assert_eq!(error("*10\r\n$16384\r\n"), None);

    let pipeline = b"*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n*11\r\n";
    let (mut parser, mut unquoted, mut args) =
        (Parser::new(Limits::UNAUTHENTICATED), Vec::new(), Args::default());
    let progress = parser.parse(pipeline, &mut unquoted, &mut args).unwrap();
    assert_eq!((args.len(), progress.more), (1, true));
    parser.set_limits(Limits::TRUSTED);
    let mut args = args.renew();
    assert!(parser.parse(&pipeline[progress.consumed..], &mut unquoted, &mut args).is_ok());
}

#[test]
fn a_header_reserves_no_memory() {
    for hostile in
        ["*1048576\r\n", "*1048576\r\n$67108864\r\n", "*1\r\n$67108864\r\n", "*1048576\r\n$1\r\nx\r\n"]
    {
        let (mut parser, mut unquoted, mut args) =
            (Parser::new(Limits::TRUSTED), Vec::new(), Args::default());
        assert!(parser.parse(hostile.as_bytes(), &mut unquoted, &mut args).is_ok());
        assert!(
            args.capacity() <= 16 && parser.memory_bytes() <= 256 && unquoted.capacity() == 0,
            "{hostile:?}"
        );
    }
}

#[test]
fn a_large_array_costs_linear_time_and_its_memory_is_freed() {
    let count = 1 << 20;
    let mut input = format!("*{count}\r\n").into_bytes();
    (0..count).for_each(|_| input.extend_from_slice(b"$1\r\nx\r\n"));
    let (mut parser, mut unquoted, mut args) = (Parser::new(Limits::TRUSTED), Vec::new(), Args::default());
    // If each of these 450 reads scanned it from its start, it would take minutes.
    for end in (0..input.len()).step_by(16 << 10).skip(1) {
        let progress = parser.parse(&input[..end], &mut unquoted, &mut args).unwrap();
        assert_eq!(progress.consumed, 0);
        unquoted = Vec::new();
        args = Args::default();
        assert!(parser.memory_bytes() <= 4 * end);
    }
    let mut unquoted = Vec::new();
    let mut args = Args::default();
    let progress = parser.parse(&input, &mut unquoted, &mut args).unwrap();
    assert_eq!((progress.consumed, args.len(), args.command(0).len()), (input.len(), 1, count));
    assert!(args.renew().capacity() <= 4 << 10);
    assert!(parser.memory_bytes() <= 8 << 10);
}

#[test]
fn an_endless_line_is_refused_after_64_kib() {
    let line = vec![b'x'; 64 << 20];
    let parsed = parse_all(Limits::TRUSTED, line.chunks(16 << 10));
    assert_eq!(parsed.error, Some(ProtocolError::InlineTooBig));
    let (mut parser, mut unquoted, mut args) = (Parser::new(Limits::TRUSTED), Vec::new(), Args::default());
    assert!(parser.parse(&line[..64 << 10], &mut unquoted, &mut args).is_ok());
    let (mut unquoted, mut args) = (Vec::new(), Args::default());
    assert!(parser.parse(&line[..=(64 << 10)], &mut unquoted, &mut args).is_err());
}

#[test]
fn commands_that_could_not_be_executed_are_parsed_again() {
    let buf = b"*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n*1\r\n$1\r\nc\r\n*2\r\n$1\r\nd\r\n";
    let (mut parser, mut unquoted, mut args) = (Parser::new(Limits::TRUSTED), Vec::new(), Args::default());
    parser.parse(buf, &mut unquoted, &mut args).unwrap();
    assert_eq!(args.len(), 3);
    let kept = &buf[args.end(0)..];
    parser.restart();
    let mut args = args.renew();
    parser.parse(kept, &mut unquoted, &mut args).unwrap();
    assert_eq!(args.iter().map(<[_]>::concat).collect::<Vec<_>>(), [b"b", b"c"]);
}

#[test]
fn words_of_an_unfinished_command_are_not_kept() {
    let (mut unquoted, mut unquoted_later, mut args) = (Vec::new(), Vec::new(), Args::default());
    let mut parser = Parser::new(Limits::TRUSTED);
    parser.parse(b"*2\r\n$1\r\na\r\n", &mut unquoted, &mut args).unwrap();
    parser.parse(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", &mut unquoted_later, &mut args).unwrap();
    assert_eq!(args.iter().collect::<Vec<_>>(), [[b"a", b"b"]]);
}

/// The inputs of the tests above in one place, for splitting.
const CORPUS: &[&str] = &[
    "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$12\r\nhello world!\r\n*0\r\n*-1\r\nPING\r\n",
    "*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$0\r\n\r\n\r\n\n PING x \n*1\r\n$1\r\n\n\r\n",
    "ECHO \"a b\"\r\nECHO 'c'\nECHO d\n*1\r\n$4\r\nPING\r\nECHO \"unbalanced\n",
    "PING\r\n*x\r\n",
    "PING\r\n*1\r\n$x\r\n",
    "*2\r\n$4\r\nPING\r\n:1\r\n",
    "*1\r\n$4\r\nPINGxx",
    "*1\r\n$1\rx",
    "*11111111111111111111111111111111111111111111111111111111111111111111",
    "*11111111111111111111111111111111111111111111111111111111111111111111\r\n",
    "*1\r\n$11111111111111111111111111111111111111111111111111111111111111111111",
    "*-1111111111111111111111111111111111111111111111111111111111111111111111",
    "PING\r\nGET / HTTP/1.1\r\nPING\r\n",
    "PING\r\n\x16\x03\x01",
    "*2\r\n$100\r\n0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\r\n$1\r\nx\r\nPING\r\n",
];

const SMALL: Limits = Limits {
    args_max: 10,
    bulk_bytes_max: 110,
    command_bytes_max: 120,
    inline_bytes_max: 12,
    batch_max: 2,
    is_unauthenticated: true,
};

#[test]
fn commands_are_parsed_the_same_at_any_split() {
    for input in CORPUS.iter().map(|input| input.as_bytes()) {
        for limits in [Limits::TRUSTED, Limits::UNAUTHENTICATED, SMALL] {
            let whole = parse_all(limits, [input]);
            assert_eq!(
                parse_all(limits, input.chunks(1)),
                whole,
                "byte by byte: {:?}",
                input.escape_ascii().to_string()
            );
            for cut in 0..=input.len() {
                let (a, b) = input.split_at(cut);
                assert_eq!(
                    parse_all(limits, [a, b]),
                    whole,
                    "cut at {cut}: {:?}",
                    input.escape_ascii().to_string()
                );
            }
        }
    }
}

fn pieces<'i>(input: &'i [u8], cuts: &[prop::sample::Index]) -> Vec<&'i [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
    cuts.sort_unstable();
    let (mut pieces, mut from) = (Vec::new(), 0);
    for cut in cuts {
        pieces.push(&input[from..cut]);
        from = cut;
    }
    pieces.push(&input[from..]);
    pieces
}

fn encoded(argv: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", argv.len()).into_bytes();
    for arg in argv {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn argv() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..130), 1..6)
}

proptest! {
    #[test]
    fn encoded_commands_are_parsed_at_any_split(
        commands in prop::collection::vec(argv(), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let input: Vec<u8> = commands.iter().flat_map(|argv| encoded(argv)).collect();
        let parsed = parse_all(Limits::TRUSTED, pieces(&input, &cuts));
        prop_assert_eq!(parsed, Parsed { commands, ..Parsed::default() });
    }

    #[test]
    fn garbage_is_parsed_the_same_at_any_split(
        input in "[*$0-9a\\-: \"'\r\n]{0,60}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = parse_all(SMALL, [input.as_bytes()]);
        prop_assert_eq!(parse_all(SMALL, pieces(input.as_bytes(), &cuts)), whole);
    }

    #[test]
    fn finds_the_same_frames_as_resp_rs(commands in prop::collection::vec(argv(), 1..4)) {
        let input: Vec<u8> = commands.iter().flat_map(|argv| encoded(argv)).collect();
        prop_assert_eq!(whole(&input).commands, oracle(&input));
    }
}

/// The commands according to an independent parser.
fn oracle(input: &[u8]) -> Vec<Vec<Vec<u8>>> {
    use resp_rs::resp2::{Frame, parse_frame};
    let mut commands = Vec::new();
    let mut consumed = 0;
    while consumed < input.len() {
        let (frame, behind) = parse_frame(input[consumed..].to_vec().into()).expect("valid RESP");
        consumed = input.len() - behind.len();
        let Frame::Array(Some(words)) = frame else { panic!("not an array: {frame:?}") };
        let words = words.into_iter().map(|word| match word {
            Frame::BulkString(Some(bytes)) => bytes.to_vec(),
            other => panic!("not a bulk: {other:?}"),
        });
        commands.push(words.collect());
    }
    commands
}

/// Feeds the pieces to one connection that refuses commands whose second word is `no`.
fn parse_with_guard<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (Parsed, usize) {
    let (mut parser, mut unquoted, mut room) = (Parser::new(Limits::TRUSTED), Vec::new(), Args::default());
    let (mut parsed, mut refused, mut kept_max) = (Parsed::default(), 0, 0);
    for piece in pieces {
        parsed.rest.extend_from_slice(piece);
        loop {
            let mut args = room;
            let outcome = parser.parse(&parsed.rest, &mut unquoted, &mut args);
            for argv in args.iter() {
                if argv.get(1) == Some(&&b"no"[..]) {
                    refused += 1;
                } else {
                    parsed.commands.push(argv.iter().map(|arg| arg.to_vec()).collect());
                }
            }
            room = args.renew();
            let Ok(progress) = outcome else {
                parsed.error = outcome.err();
                return (parsed, refused);
            };
            parsed.rest.drain(..progress.consumed);
            if parser.unfinished(&parsed.rest).nth(1) == Some(b"no") {
                refused += 1;
                parser.pass_over();
            } else if !progress.more {
                break;
            }
        }
        kept_max = kept_max.max(parsed.rest.len());
    }
    assert!(kept_max < 200, "{kept_max} bytes were kept");
    (parsed, refused)
}

#[test]
fn a_refused_command_is_dropped_at_any_split() {
    let unwanted = format!("*4\r\n$4\r\nPUSH\r\n$2\r\nno\r\n$1000\r\n{}\r\n$0\r\n\r\n", "\r\n".repeat(500));
    let input = format!("*2\r\n$4\r\nECHO\r\n$1\r\na\r\n{unwanted}{unwanted}*2\r\n$4\r\nECHO\r\n$1\r\nb\r\n");
    let bytes = input.as_bytes();
    for size in (1..90).chain([bytes.len()]) {
        let (parsed, refused) = parse_with_guard(bytes.chunks(size));
        assert_eq!(
            parsed.commands,
            [[b"ECHO".to_vec(), b"a".to_vec()], [b"ECHO".to_vec(), b"b".to_vec()]],
            "{size}"
        );
        assert_eq!((parsed.error, parsed.rest.len(), refused), (None, 0, 2), "in pieces of {size}");
    }
}

#[test]
fn errors_in_a_refused_command_are_still_reported() {
    let beginning = &b"*4\r\n$4\r\nPUSH\r\n$2\r\nno\r\n$3\r\n"[..];
    for (rest, error) in [
        (&b"abcde"[..], ProtocolError::BulkEnd),
        (b"abc\r\n:3\r\n", ProtocolError::ExpectedBulk(b':')),
        (b"abc\r\n$x\r\n", ProtocolError::BulkLength),
        (b"abc\r\n$99999999999\r\n", ProtocolError::BulkLength),
    ] {
        let (parsed, _) = parse_with_guard([beginning].into_iter().chain(rest.chunks(1)));
        assert_eq!(parsed.error, Some(error), "{}", String::from_utf8_lossy(rest));
    }
}

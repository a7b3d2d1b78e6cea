//! Parses lines of the text dialect from arbitrary bytes. Checks that there is no panic, that at most one line is
//! buffered, and that the requests are the same however the bytes are split into reads. The first bytes of the input
//! choose the splits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sureq_core::command::Command;
use sureq_proto::text::{Close, Item, Limits, ParsedLine, Parser, ReservationPolicy};

const SMALL: Limits = Limits { line_bytes_max: 20, endless_bytes_max: 50 };

type Parsed = (Vec<String>, Option<Close>);

fuzz_target!(|data: &[u8]| {
    let Some((cuts, input)) = data.split_first_chunk::<4>() else { return };
    for limits in [Limits::default(), SMALL] {
        let whole = parse_all(limits, [input]);
        assert_eq!(parse_all(limits, pieces(input, *cuts)), whole, "cut by {cuts:?}");
        assert_eq!(parse_all(limits, input.chunks(1)), whole, "byte by byte");
    }
});

fn parse_all<'p>(limits: Limits, pieces: impl IntoIterator<Item = &'p [u8]>) -> Parsed {
    let mut parser = Parser::new(limits);
    let (mut parsed, mut buf) = (Vec::new(), Vec::new());
    for piece in pieces {
        buf.extend_from_slice(piece);
        let mut items = Vec::new();
        let outcome = parser.parse(&buf, &mut items);
        parsed.extend(items.iter().map(|line: &ParsedLine<'_>| understand(&line.item)));
        match outcome {
            Err(close) => return (parsed, Some(close)),
            Ok(consumed) => drop(buf.drain(..consumed)),
        }
        assert!(buf.len() <= limits.line_bytes_max + 1, "more is kept than a line");
    }
    (parsed, None)
}

fn understand(item: &Item<'_>) -> String {
    match item {
        Item::Complaint(complaint) => complaint.to_string(),
        Item::Request(request) => {
            let command = request.command(ReservationPolicy { timeout_secs: 1, attempts: 2 });
            if let Command::Add(add) = command {
                assert!(
                    !add.payload.contains(&b' ') && !add.payload.contains(&b'\n'),
                    "a body is one attribute"
                );
            }
            format!("{command:?}")
        }
    }
}

fn pieces(input: &[u8], cuts: [u8; 4]) -> Vec<&[u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (input.len() + 1)).collect();
    at.sort_unstable();
    let (mut pieces, mut from) = (Vec::new(), 0);
    for cut in at {
        pieces.push(&input[from..cut]);
        from = cut;
    }
    pieces.push(&input[from..]);
    pieces
}

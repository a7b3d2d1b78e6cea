//! Parses RESP requests from arbitrary bytes. Checks that there is no panic, that memory is bounded, that errors are
//! one line, and that the commands are the same however the bytes are split into reads. The first bytes of the input
//! choose the splits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sureq_core::command::ConnId;
use sureq_proto::encode_answer;
use sureq_proto::resp::{Args, Limits, Parser, ProtocolError, Version};
use sureq_proto::verbs::{self, Caller, Request};

const SMALL: Limits = Limits {
    args_max: 100,
    bulk_bytes_max: 1_000,
    command_bytes_max: 2_000,
    inline_bytes_max: 200,
    batch_max: 3,
    is_unauthenticated: false,
};

type Parsed = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>, Vec<u8>);

fuzz_target!(|data: &[u8]| {
    let Some((cuts, input)) = data.split_first_chunk::<4>() else { return };
    for limits in [Limits::TRUSTED, Limits::UNAUTHENTICATED, SMALL] {
        let whole = parse_all(limits, [input]);
        assert_eq!(parse_all(limits, pieces(input, *cuts)), whole, "cut by {cuts:?}");
        assert_eq!(parse_all(limits, input.chunks(1)), whole, "byte by byte");
        whole.0.iter().for_each(|argv| understand(argv));
    }
});

fn parse_all<'p>(limits: Limits, pieces: impl IntoIterator<Item = &'p [u8]>) -> Parsed {
    let (mut parser, mut unquoted, mut room) = (Parser::new(limits), Vec::new(), Args::default());
    let (mut commands, mut buf, mut fed) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        buf.extend_from_slice(piece);
        fed += piece.len();
        loop {
            let mut args = room;
            let outcome = parser.parse(&buf, &mut unquoted, &mut args);
            commands.extend(args.iter().map(|argv| argv.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>()));
            assert!(
                args.capacity() <= 2 * fed + 16 && parser.memory_bytes() <= 16 * fed + 256,
                "memory ahead of bytes"
            );
            room = args.renew();
            match outcome {
                Err(error) => return (commands, Some(error), Vec::new()),
                Ok(progress) => {
                    buf.drain(..progress.consumed);
                    if !progress.more {
                        break;
                    }
                    assert!(progress.consumed > 0, "no progress");
                }
            }
        }
    }
    (commands, None, buf)
}

fn understand(argv: &[Vec<u8>]) {
    let words: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
    match verbs::parse(&words, Caller { conn: ConnId(1) }) {
        Ok(Request::Session(command)) => {
            let _ = encode_answer(&mut Vec::new(), Version::Resp3, &command);
        }
        Ok(Request::Home { .. }) => {}
        Err(no) => {
            assert!(no.as_str().bytes().all(|c| matches!(c, b' '..=b'~')), "an error is one line of ASCII")
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

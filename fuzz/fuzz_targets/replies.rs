//! Decodes RESP replies from arbitrary bytes. Checks that there is no panic, and that the replies are the same
//! however the bytes are split into reads. The first bytes of the input choose the splits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sureq_core::command::{Command, IdForm, LeaseAsk, Pop, TaskRef, View, Worker};
use sureq_core::reply::Replies;
use sureq_proto::resp::{PieceReader, Scanner};
use sureq_proto::{ReplyForm, decode_reply};

type Parsed = (Vec<Vec<u8>>, bool);

fuzz_target!(|data: &[u8]| {
    let Some((cuts, input)) = data.split_first_chunk::<4>() else { return };
    for bytes_max in [40, 1 << 20] {
        let whole = parse_all(bytes_max, [input]);
        assert_eq!(parse_all(bytes_max, pieces(input, *cuts)), whole, "cut by {cuts:?}");
        assert_eq!(parse_all(bytes_max, input.chunks(1)), whole, "byte by byte");
        whole.0.iter().for_each(|reply| understand(reply));
    }
});

/// The replies, and whether invalid bytes followed them.
fn parse_all<'p>(bytes_max: usize, parts: impl IntoIterator<Item = &'p [u8]>) -> Parsed {
    let (mut scanner, mut replies, mut buf) = (Scanner::new(bytes_max), Vec::new(), Vec::new());
    for part in parts {
        buf.extend_from_slice(part);
        loop {
            match scanner.scan(&buf) {
                Err(_) => return (replies, true),
                Ok(None) => break,
                Ok(Some(len)) => replies.push(buf.drain(..len).collect()),
            }
        }
    }
    (replies, false)
}

/// Checks that a whole reply can be walked through, and that each command's decoder accepts or refuses it.
fn understand(reply: &[u8]) {
    let mut pieces = PieceReader::new(reply);
    let first = pieces.take().expect("a whole reply has a first piece");
    pieces.skip(first).expect("and all that belongs to it");
    assert_eq!(pieces.at(), reply.len());
    let lease = LeaseAsk { ms: Some(1), ..LeaseAsk::NONE };
    let questions = [
        Command::Push { queue: b"q", payloads: &[] },
        Command::Pop(Pop { lease, meta: true, ..Pop::plain(&[b"q"], 1) }),
        Command::Inspect { queue: b"q", view: View::Dead, start: 0, count: 1 },
        Command::Info { queue: b"q" },
        Command::Queues { pattern: None, cursor: 0, count: 1 },
        Command::Explain { queue: b"q", task: TaskRef { bytes: b"1-1", form: IdForm::Long } },
        Command::Worker(Worker::List),
    ];
    for question in &questions {
        let mut replies = Replies::default();
        let read =
            decode_reply(&ReplyForm::of_sent(question), reply, |range| reply[range].len(), &mut replies);
        assert_eq!(replies.list.len(), usize::from(read.is_ok()));
    }
}

fn pieces(input: &[u8], cuts: [u8; 4]) -> Vec<&[u8]> {
    let (mut rest, mut parts) = (input, Vec::new());
    for cut in cuts {
        let (part, behind) = rest.split_at(usize::from(cut).min(rest.len()));
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    parts
}

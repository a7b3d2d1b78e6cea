//! The output of client commands: tables and lines, or one JSON object per line.

use std::io::{self, BufWriter, IsTerminal as _, Write as _, stdout};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Map, Value};
use sureq::Id;

use super::error::CommandError;

/// The length of a payload's preview in a table.
const PREVIEW_CHARS: usize = 60;

/// Standard output as text or JSON.
pub(super) struct Output {
    out: BufWriter<io::Stdout>,
    is_json: bool,
    is_watched: bool,
    reader: Reader,
}

/// The reaction to an exit of the reader of standard output.
#[derive(Clone, Copy)]
enum Reader {
    /// The command ends without an error.
    Enough,
    /// The command continues.
    Optional,
    /// The command fails: its output cannot be obtained again.
    Needed,
}

/// A column of a table.
pub(super) enum Column {
    /// Text, to the left.
    Text(&'static str),
    /// A number, to the right.
    Number(&'static str),
}

impl Output {
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            out: BufWriter::new(stdout()),
            is_json,
            is_watched: stdout().is_terminal(),
            reader: Reader::Enough,
        }
    }

    /// Makes the command continue if the reader exits.
    pub(super) const fn go_on_unread(&mut self) {
        self.reader = Reader::Optional;
    }

    fn written(&self, result: io::Result<()>) -> Result<(), CommandError> {
        match (result.map_err(CommandError::output), self.reader) {
            (Err(CommandError::OutputClosed), Reader::Optional) => Ok(()),
            (Err(CommandError::OutputClosed), Reader::Needed) => {
                let operation = "cannot print popped tasks to standard output".to_owned();
                Err(CommandError::File { operation, error: io::ErrorKind::BrokenPipe.into() })
            }
            (result, _) => result,
        }
    }

    pub(super) const fn is_json(&self) -> bool {
        self.is_json
    }

    /// Writes a line of text.
    pub(super) fn line(&mut self, text: impl std::fmt::Display) -> Result<(), CommandError> {
        let result = writeln!(self.out, "{text}");
        self.written(result)
    }

    /// Makes the command fail if the reader exits.
    pub(super) const fn must_be_read(&mut self) {
        self.reader = Reader::Needed;
    }

    /// Writes raw bytes and a line end.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        let result = self.out.write_all(bytes).and_then(|()| self.out.write_all(b"\n"));
        self.written(result)
    }

    /// Writes a JSON object on a line.
    pub(super) fn object<'n>(
        &mut self,
        fields: impl IntoIterator<Item = (&'n str, Value)>,
    ) -> Result<(), CommandError> {
        let object: Map<String, Value> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.line(Value::Object(object))
    }

    /// Writes a table; nothing if there are no rows.
    pub(super) fn table(&mut self, columns: &[Column], rows: Vec<Vec<String>>) -> Result<(), CommandError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(Column::head));
        for row in rows {
            table.add_row(row);
        }
        for (column, kind) in table.column_iter_mut().zip(columns) {
            column.set_padding((0, 2));
            if let Column::Number(_) = kind {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for (at, line) in table.lines().enumerate() {
            let line = line.trim_end();
            // Bold on a terminal.
            if at == 0 && self.is_watched {
                self.line(format_args!("\x1b[1m{line}\x1b[0m"))?;
            } else {
                self.line(line)?;
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), CommandError> {
        let result = self.out.flush();
        self.written(result)
    }
}

impl Column {
    fn head(&self) -> Cell {
        match self {
            Self::Text(name) | Self::Number(name) => Cell::new(name),
        }
    }
}

/// Bytes as a JSON field: text under `name`, or base64 under `name_base64` if they are not UTF-8.
macro_rules! field {
    ($name:literal, $bytes:expr) => {
        $crate::client::output::text_or_base64($name, concat!($name, "_base64"), $bytes)
    };
}
pub(super) use field;

/// The same for optional bytes: null under `name` if there are none.
macro_rules! or_null {
    ($name:literal, $bytes:expr) => {
        $bytes.map_or(($name, ::serde_json::Value::Null), |bytes| {
            $crate::client::output::text_or_base64($name, concat!($name, "_base64"), bytes)
        })
    };
}
pub(super) use or_null;

pub(super) fn text_or_base64<'n>(name: &'n str, base64_name: &'n str, bytes: &[u8]) -> (&'n str, Value) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (name, text.into()),
        Err(_) => (base64_name, BASE64_STANDARD.encode(bytes).into()),
    }
}

/// The id of a task; null in layouts where a task gets its id at delivery.
pub(super) fn id_field(id: &Id) -> (&'static str, Value) {
    or_null!("id", Some(id.as_ref()).filter(|id| !id.is_empty()))
}

/// A name on one line; an empty name is printed as two quotes.
pub(super) fn name(bytes: &[u8]) -> String {
    if bytes.is_empty() { r#""""#.to_owned() } else { on_one_line(bytes) }
}

/// Text as it is, and escaped if it is not UTF-8 or has control characters.
pub(super) fn on_one_line(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// The beginning of a payload, on one line.
pub(super) fn preview(payload: &[u8]) -> String {
    let mut head = &payload[..payload.len().min(4 * PREVIEW_CHARS)];
    // Drop a character that the cut splits, so that the rest is still text.
    if let Err(error) = std::str::from_utf8(head)
        && head.len() < payload.len()
        && error.error_len().is_none()
    {
        head = &head[..error.valid_up_to()];
    }
    let text = on_one_line(head);
    let is_whole = payload.len() <= 4 * PREVIEW_CHARS && text.chars().count() <= PREVIEW_CHARS;
    if is_whole { text } else { text.chars().take(PREVIEW_CHARS - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_shown_on_one_line_and_not_too_long() {
        assert_eq!((preview(b"hello").as_str(), preview(b"").as_str()), ("hello", ""));
        assert_eq!((name(b"").as_str(), name(b"q\n").as_str()), (r#""""#, r"q\n"));
        assert_eq!(preview("grüße".as_bytes()), "grüße");
        assert_eq!(preview(b"a\nb"), "a\\nb");
        assert_eq!(preview(&[0xff, b'x']), "\\xffx");
        let long = preview(&[b'x'; 100]);
        assert!(long.ends_with("x…") && long.chars().count() == PREVIEW_CHARS);
        // The 240th byte is in the middle of a character.
        let cut = preview(format!("x{}", "ü".repeat(200)).as_bytes());
        assert!(cut.starts_with("xüüü") && cut.ends_with("ü…"), "{cut}");
        assert_eq!(preview(&[b"x", &[0xc3; 300][..]].concat()).get(..5), Some("x\\xc3"));
        assert_eq!(field!("payload", &[0xff]), ("payload_base64", "/w==".into()));
        assert_eq!(field!("queue", b"tab\tname"), ("queue", "tab\tname".into()));
    }
}

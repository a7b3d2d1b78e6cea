//! Parses a file into a scenario.

use std::path::Path;

use super::pattern::Pattern;
use super::{Act, Expected, Scenario, Step, Watch, is_text};

impl Scenario {
    /// Reads a scenario from its file.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(path, &text)
    }

    /// Parses a scenario from its text; `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, String> {
        let mut reader = Reader { lines: text.lines().map(str::to_owned).collect(), at: 0 };
        let mut scenario = Self {
            path: path.to_owned(),
            title: String::new(),
            watcher: Watch::default(),
            no_extra_restarts: None,
            lines: reader.lines.clone(),
            steps: Vec::new(),
        };
        scenario.title = reader.title();
        while let Some(line) = reader.next() {
            let read = scenario.take(&line, &mut reader);
            read.map_err(|error| format!("{}:{}: {error}", path.display(), reader.at))?;
        }
        if scenario.title.is_empty() {
            return Err(format!("{}: the first line must be a # comment with the title", path.display()));
        }
        Ok(scenario)
    }

    fn take(&mut self, line: &str, reader: &mut Reader) -> Result<(), String> {
        let number = reader.at - 1;
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(values) = line.strip_prefix("watcher ") {
            self.watcher = watcher(values)?;
            return Ok(());
        }
        if let Some(why) = line.strip_prefix("no-extra-restarts: ") {
            self.no_extra_restarts = Some(why.to_owned());
            return Ok(());
        }
        let act = if let Some((conn, request)) = asks(line) {
            reader.ask(conn, request, number)?
        } else if let Some((conn, reply)) = answers(line) {
            let expected = reader.expected(conn, reply.to_owned(), number)?;
            Act::Answer { conn: conn.to_owned(), expected }
        } else {
            directive(line)?
        };
        self.steps.push(Step { line: number, act });
        Ok(())
    }
}

struct Reader {
    lines: Vec<String>,
    /// The index of the next line.
    at: usize,
}

impl Reader {
    fn next(&mut self) -> Option<String> {
        let line = self.lines.get(self.at).cloned();
        self.at += usize::from(line.is_some());
        line
    }

    /// The comment at the start, up to its first full stop.
    fn title(&self) -> String {
        let comment = self.lines.iter().take_while(|line| line.starts_with('#'));
        let words: Vec<&str> = comment.map(|line| line.trim_start_matches('#').trim()).collect();
        let text = words.join(" ");
        text.split_once(". ").map_or(&*text, |(first, _)| first).trim_end_matches('.').to_owned()
    }

    /// A block of commands, and the replies below it.
    fn ask(&mut self, conn: &str, request: &str, number: usize) -> Result<Act, String> {
        let mut requests = vec![(number, request.to_owned())];
        while let Some((same, request)) = self.lines.get(self.at).and_then(|line| asks(line)) {
            if same != conn {
                break;
            }
            requests.push((self.at, request.to_owned()));
            self.at += 1;
        }
        let mut expected = Vec::new();
        while expected.len() < requests.len() {
            let line = self.next().unwrap_or_default();
            if line.split('#').next().is_some_and(|line| line.trim() == "...") {
                return Ok(Act::Ask { conn: conn.to_owned(), requests, expected, waits: true });
            }
            if line.trim().is_empty() {
                return Err("a command needs a reply below it".to_owned());
            }
            let first = self.at - 1;
            expected.push(self.expected(conn, line, first)?);
        }
        Ok(Act::Ask { conn: conn.to_owned(), requests, expected, waits: false })
    }

    /// A reply; in RESP it continues until its brackets are closed.
    fn expected(&mut self, conn: &str, mut text: String, first: usize) -> Result<Expected, String> {
        if is_text(conn) {
            return Ok(Expected { pattern: Pattern::parse_line(&text)?, first, last: first });
        }
        loop {
            if let Some(pattern) = Pattern::parse_resp(&text)? {
                return Ok(Expected { pattern, first, last: self.at - 1 });
            }
            // A comment ends with its line.
            let line = self.next().ok_or("the file ends within a reply")?;
            let above = text.split(" #").next().unwrap_or_default().to_owned();
            text = format!("{above} {}", line.trim());
        }
    }
}

/// `conn> request`
fn asks(line: &str) -> Option<(&str, &str)> {
    let (conn, request) = line.split_once('>')?;
    is_conn(conn).then(|| (conn, request.strip_prefix(' ').unwrap_or(request)))
}

/// `conn< reply`
fn answers(line: &str) -> Option<(&str, &str)> {
    let (conn, reply) = line.split_once('<')?;
    is_conn(conn).then(|| (conn, reply.strip_prefix(' ').unwrap_or(reply)))
}

fn is_conn(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn directive(line: &str) -> Result<Act, String> {
    let line = line.split(" #").next().unwrap_or_default().trim();
    let (word, value) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "pass" => span_ms(value).map(Act::Pass),
        "leap" => span_ms(value).map(Act::Leap),
        "jump" => {
            let (sign, span) = match value.strip_prefix('-') {
                Some(span) => (-1, span),
                None => (1, value.strip_prefix('+').unwrap_or(value)),
            };
            let ms = i64::try_from(span_ms(span)?).map_err(|_| "too far".to_owned())?;
            Ok(Act::Jump(sign * ms))
        }
        "restart" if value.is_empty() => Ok(Act::Restart),
        "close" if is_conn(value) => Ok(Act::Close(value.to_owned())),
        _ => Err(format!("{line:?} is neither a command, a reply nor a directive")),
    }
}

/// `5s`, in milliseconds.
fn span_ms(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("invalid time {text:?}: write 500ms, 2s, 1h or 365d")),
    };
    digits.parse::<u64>().map(|n| n * unit).map_err(|_| format!("invalid time {text:?}"))
}

/// `rtt=1 rta=2`
fn watcher(text: &str) -> Result<Watch, String> {
    let mut watch = Watch::default();
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').ok_or("write watcher rtt=1 rta=2")?;
        let value = value.parse().map_err(|_| format!("{word}: not a number"))?;
        match name {
            "rtt" => watch.rtt = value,
            "rta" => watch.rta = value,
            _ => return Err(format!("the watcher has no {name}")),
        }
    }
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Scenario, String> {
        Scenario::parse(Path::new("x.txt"), text)
    }

    #[test]
    fn a_file_becomes_steps() {
        let text = "# One. Two\nwatcher rtt=1 rta=2\n\n> A\n> B\n[a # why\n  b]\n1\nc2> C\n...\nc2< 5\npass 2s\njump -1d\nrestart\nclose c2\n";
        let scenario = parse(text).unwrap();
        assert_eq!((scenario.title.as_str(), scenario.steps.len()), ("One", 7));
        assert_eq!(scenario.watcher, Watch { rtt: 1, rta: 2 });
        assert!(matches!(&scenario.steps[0].act, Act::Ask { requests, expected, waits: false, .. }
            if requests.len() == 2 && expected[0].last == 6 && expected[1].first == 7));
        assert!(matches!(&scenario.steps[1].act, Act::Ask { conn, waits: true, .. } if conn == "c2"));
        assert!(matches!(scenario.steps[4].act, Act::Jump(-86_400_000)));
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, expect) in [
            ("> A\n1\n", "x.txt: the first line must be"),
            ("# T\n\n> A\n\n", "x.txt:4: a command needs a reply"),
            ("# T\nwait\n", "x.txt:2: \"wait\" is neither"),
            ("# T\npass 2\n", "x.txt:2: invalid time \"2\""),
            ("# T\n> A\n[a\n", "x.txt:3: the file ends within a reply"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expect), "{error}");
        }
    }
}

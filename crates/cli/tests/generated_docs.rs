//! The documents agree with the code: generated ones are up to date, and all files and tests that documents name
//! exist.
//!
//! `SUREQ_BLESS=1 cargo test -p sureq-cli --test generated_docs` regenerates them.

#[path = "documents/tree.rs"]
#[allow(dead_code, reason = "shared with the other checks of documents")]
mod tree;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use tree::{documents, read, root};

fn check_fresh(file: &str, text: &str) {
    if std::env::var_os("SUREQ_BLESS").is_some() {
        fs::write(root().join(file), text).expect("the document can be written");
    }
    assert!(
        read(file) == text,
        "{file} is stale: SUREQ_BLESS=1 cargo test -p sureq-cli --test generated_docs"
    );
}

#[test]
fn the_commands_document_is_up_to_date() {
    check_fresh("docs/reference/commands.md", &sureq_proto::verbs::commands_markdown());
}

#[test]
fn the_roles_in_the_users_document_are_up_to_date() {
    check_fresh_part("docs/operate/users.md", "roles", &sureq_proto::verbs::roles_markdown());
}

#[test]
fn the_programs_in_the_pages_on_clients_are_up_to_date() {
    for (page, language, programs) in [
        ("python.md", "python", ["worker.py", "producer.py"].as_slice()),
        ("node.md", "js", &["worker.mjs", "producer.mjs"]),
        ("autoscaling.md", "python", &["autoscale.py"]),
    ] {
        for program in programs {
            let block = format!("```{language}\n{}```\n", read(&format!("docs/use/clients/{program}")));
            check_fresh_part(&format!("docs/use/clients/{page}"), program, &block);
        }
    }
}

/// How long the default tries last, computed from the constants that set them.
#[test]
fn the_retries_document_says_how_long_the_default_tries_last() {
    use sureq_core::limits::{BACKOFF_MS_DEFAULT, BACKOFF_MS_MAX, TRIES_DEFAULT};
    let mut table = String::from(
        "| tries failed | longest wait before the next | sum of waits: at least | at most |\n|---:|---:|---:|---:|\n",
    );
    let mut sum_ms = 0;
    for failed in 1..TRIES_DEFAULT {
        let wait_ms = (BACKOFF_MS_DEFAULT << (failed - 1)).min(BACKOFF_MS_MAX);
        sum_ms += wait_ms;
        if [1, 2, 3, 5, 8, 12, 13, 18, TRIES_DEFAULT - 1].contains(&failed) {
            let waits = [wait_ms, sum_ms / 2, sum_ms].map(|ms| readable(ms / 1000));
            let _ = writeln!(table, "| {failed} | {} |", waits.join(" | "));
        }
    }
    let _ = write!(
        table,
        "\nSo a task is dead between {} and {} after its first failure.\n",
        readable(sum_ms / 2000),
        readable(sum_ms / 1000)
    );
    check_fresh_part("docs/use/retries.md", "retries", &table);
}

/// Seconds in a readable form, rounded down.
fn readable(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Checks the part of a document between `<!-- name -->` and `<!-- /name -->`.
fn check_fresh_part(file: &str, name: &str, part: &str) {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let text = read(file);
    let (before, rest) = text.split_once(&begin).expect("the part has a beginning");
    let (_, behind) = rest.split_once(&end).expect("the part has an end");
    check_fresh(file, &[before, &begin, part, &end, behind].concat());
}

#[test]
fn the_limits_document_is_up_to_date() {
    check_fresh("docs/operate/limits.md", &limits_markdown());
}

fn limits_markdown() -> String {
    let mut text = String::from(
        "# Limits\n\nEvery limit, and the memory that tasks cost. The values come from `crates/core/src/limits.rs`. A name \
         ends in its unit\nor says which things it counts. Limits that can be set are in [configuration](configuration.md); \
         the others are fixed.\nA request beyond a limit is refused with an error, unless its line says otherwise.\n\n\
         | limit | value | meaning |\n|---|---:|---|\n",
    );
    for limit in sureq_core::limits::TABLE {
        let name = limit.name.to_ascii_lowercase();
        let _ = writeln!(text, "| `{name}` | {} | {} |", figure(limit.value, &name), limit.what.trim());
    }
    text + MEMORY
}

/// Measured with `sureq-bench memory`, and with 200,000 tasks of each kind, as resident memory.
const MEMORY: &str = "
## Memory per task

A payload costs no memory beyond `--cache`. The rest costs about this much, in bytes per task
(`cargo run --release -p sureq-bench -- memory`, and 200,000 tasks of each kind):

| task | bytes |
|---|---:|
| ready, plainly pushed to one queue, in batches | 1 to 3 |
| the same, one by one | 2 to 6 |
| the same, over a thousand queues in turn | 10 to 15; 64 with only 200 in each |
| delayed, and nothing else | 40 to 70 |
| leased by a plain pop | 140 |
| leased with a deadline, a worker or a connection | 280 to 300 |
| dead, and never delivered | 135 |
| pushed with a priority | 165 |
| waiting again or dead after a delivery | 330 |
| pushed with a time to live | 340 |
| unique by its payload | 370 |
| named | 400, and twice the name |

A reason of failure costs its own bytes, and each past delivery after the first about 35 (the last five are kept). With
`mem:` a payload costs its bytes, rounded up by as much as a fourth, and about 60 more.

A queue costs about 1 KB, and so does an idle connection. `--memory` limits the sum, which is `used_memory` of
`INFO memory`. That figure is an estimate: between 0.6 and 1.4 times the memory that the operating system reports.
";

/// A value with its unit, in a readable form.
fn figure(value: u64, name: &str) -> String {
    match value {
        bytes if name.contains("_bytes_") && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if name.contains("_bytes_") => format!("{} KiB", bytes >> 10),
        ms if name.contains("_ms") && ms % 86_400_000 == 0 => format!("{} days", ms / 86_400_000),
        ms if name.contains("_ms") && ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if name.contains("_ms") && ms < 1_000 => format!("{ms} ms"),
        ms if name.contains("_ms") && ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        count => count.to_string(),
    }
}

/// The texts between backticks.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    let outside_blocks = text.split("```").step_by(2);
    outside_blocks.flat_map(|text| text.split('`').skip(1).step_by(2))
}

#[test]
fn every_file_and_test_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for document in documents() {
        for word in code_words(&read(&document)) {
            let (file, test) = word.split_once("::").map_or((word, None), |(file, test)| (file, Some(test)));
            let is_path =
                ["crates/", "docs/", "fuzz/", "clients/", ".ci/"].iter().any(|dir| file.starts_with(dir));
            if !is_path || file.contains(['*', '{', '<', ' ', '…']) {
                continue;
            }
            let Some(test) = test else {
                if !root().join(file).exists() {
                    missing.push(format!("{document}: {file}"));
                }
                continue;
            };
            let found =
                fs::read_to_string(root().join(file)).is_ok_and(|code| code.contains(&format!("fn {test}(")));
            if !found {
                missing.push(format!("{document}: {file}::{test}"));
            }
        }
    }
    assert!(missing.is_empty(), "named but missing:\n{}", missing.join("\n"));
}

#[test]
fn the_configuration_document_has_every_setting_and_no_other() {
    let help = Command::new(env!("CARGO_BIN_EXE_sureq")).args(["serve", "--help"]).output().expect("it runs");
    let help = String::from_utf8(help.stdout).expect("help is text");
    let document = read("docs/operate/configuration.md");
    // Flags that print help are not settings.
    let flags = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        let flags = words.filter(|word| word.starts_with("--") && word.len() > 2 && *word != "--help");
        flags.map(str::to_owned).collect()
    };
    let variables = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
        words.filter(|word| word.starts_with("SUREQ_")).map(str::to_owned).collect()
    };
    let rows: String = document.lines().filter(|line| line.starts_with("| `--")).collect();
    assert_eq!(flags(&rows), flags(&help));
    assert_eq!(variables(&rows), variables(&help));
}

#[test]
fn the_command_line_document_has_the_exit_codes() {
    let help = Command::new(env!("CARGO_BIN_EXE_sureq")).arg("--help").output().expect("it runs");
    let help = String::from_utf8(help.stdout).expect("help is text");
    let (_, codes) = help.split_once("Exit codes:\n").expect("the help lists the exit codes");
    let codes: Vec<&str> = codes.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(codes.len() > 3, "{codes:?}");
    let text = read("docs/reference/command-line.md");
    for code in &codes {
        assert!(text.contains(&format!("| {code} |")), "the document does not explain exit code {code}");
    }
}

//! Measures leases: the same load with plain pops and with pops that have a deadline and a worker, in turns.

use std::error::Error;
use std::time::Duration;

use crate::account::Account;
use crate::client::Client;
use crate::dialect::LeasedRq;
use crate::load::{self, LoadShape, Measured, SHAPES};
use crate::resp::{self, Token};
use crate::servers::{Installation, Server};
use crate::tables::{median, micros, table, times};
use crate::targets::Target;
use crate::{Common, Outcome, machine, salt};

/// Options of `leased`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of repetitions; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// Approximate duration of one run
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// The limit for the CPU per leased task, relative to that of a plain one, with one command at a time.
const AIM: f64 = 1.15;
const TARGETS: [Target; 2] = [Target::SureqAlways, Target::SureqNone];

/// The CPU per task of one pair of runs, in microseconds.
struct Pair {
    target: Target,
    shape: LoadShape,
    plain: f64,
    leased: f64,
}

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let place = arguments.common.place()?;
    let versions = place.check(&TARGETS)?;
    let mut journal = arguments.common.journal()?;
    let aim = Duration::from_secs_f64(arguments.seconds.clamp(0.1, 3600.0));
    let (mut pairs, mut wrong) = (Vec::new(), Vec::new());
    for repetition in 1..=arguments.reps.max(1) {
        for target in TARGETS {
            for shape in SHAPES {
                let runs = [Kind::Plain, Kind::Leased].map(|kind| measure(&place, target, shape, aim, kind));
                let [plain, leased] = runs;
                let (plain, leased) = (plain?, leased?);
                wrong.extend([plain.wrong, leased.wrong]);
                let pair = Pair { target, shape, plain: cpu(&plain), leased: cpu(&leased) };
                eprintln!("{repetition}/{} {}", arguments.reps.max(1), pair.progress());
                journal.write(&pair.json())?;
                pairs.push(pair);
            }
        }
    }
    println!("{}; {}. Medians of {} runs.\n", machine(), versions.join(", "), arguments.reps.max(1));
    print!("{}", render(&pairs));
    Ok(Outcome::of(wrong))
}

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Leased,
}

fn measure(
    place: &Installation,
    target: Target,
    shape: LoadShape,
    aim: Duration,
    kind: Kind,
) -> Result<Measured, Box<dyn Error>> {
    let mut server = place.start(target)?;
    if matches!(kind, Kind::Leased) {
        let worker = start_worker(&server)?;
        // One per run, until the benchmark ends.
        server.dialect = Box::leak(Box::new(LeasedRq { worker }));
    }
    load::run(&server, shape, aim, &mut Account::new(salt()))
}

/// Starts a worker that lives longer than any run without a heartbeat.
fn start_worker(server: &Server) -> Result<String, Box<dyn Error>> {
    let mut client = Client::connect(server.address, server.dialect.scanner())?;
    resp::command(&mut client.output, &[b"RQ.WORKER", b"START", b"bench", b"TTL", b"86400000"]);
    client.send()?;
    let reply = client.reply()?;
    match reply.tokens {
        [Token::Bulk(worker)] => Ok(String::from_utf8(reply.bytes[worker.clone()].to_vec())?),
        other => Err(format!("the server answered the start of a worker with {other:?}").into()),
    }
}

fn cpu(measured: &Measured) -> f64 {
    micros(measured.cost.server_cpu) / u32::try_from(measured.tasks).map_or(f64::MAX, f64::from)
}

impl Pair {
    fn progress(&self) -> String {
        let Pair { target, shape, plain, leased } = self;
        format!("{:<13} {:<9} {plain:>7.2} µs plain {leased:>7.2} µs leased", target.name(), shape.name)
    }

    fn json(&self) -> String {
        let Pair { target, shape, plain, leased } = self;
        format!(
            "{{\"target\":\"{}\",\"load\":\"{}\",\"plain_us\":{plain:.4},\"leased_us\":{leased:.4}}}",
            target.name(),
            shape.name
        )
    }
}

fn render(pairs: &[Pair]) -> String {
    let mut rows = Vec::new();
    for target in TARGETS {
        for shape in SHAPES {
            let of = |pick: fn(&Pair) -> f64| {
                let these = pairs.iter().filter(|pair| pair.target == target && pair.shape == shape);
                median(these.map(pick).collect())
            };
            let (plain, leased, ratio) =
                (of(|pair| pair.plain), of(|pair| pair.leased), of(|pair| pair.leased / pair.plain));
            let (aim, verdict) = match ratio.filter(|_| shape.name == SHAPES[0].name) {
                None => (String::new(), ""),
                Some(ratio) => (format!("{AIM:.2} ×"), if ratio <= AIM { "met" } else { "missed" }),
            };
            let figure = |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), |us| format!("{us:.2}"));
            rows.push(vec![
                format!("{}, {}", target.title(), shape.title),
                figure(plain),
                figure(leased),
                times(ratio),
                aim,
                verdict.to_owned(),
            ]);
        }
    }
    table(&["CPU per task", "plain µs", "leased µs", "leased ÷ plain", "at most", "verdict"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aim_is_for_one_command_at_a_time() {
        let pair =
            |shape: LoadShape, leased: f64| Pair { target: Target::SureqNone, shape, plain: 10.0, leased };
        let text = render(&[pair(SHAPES[0], 11.4), pair(SHAPES[0], 11.6), pair(SHAPES[2], 20.0)]);
        assert!(text.contains("1.15 ×") && text.contains("met") && text.contains("2.00 ×"), "{text}");
        assert!(!text.contains("missed"), "{text}");
    }
}

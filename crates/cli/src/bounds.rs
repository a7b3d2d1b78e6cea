//! The limits of `serve` that can be set, and their ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use sureq::limits;
use sureq_server::Bounds;

use crate::settings::Settings;
use crate::size;

const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;
const COMMAND_ARGS: RangeInclusive<usize> = 16..=limits::COMMAND_ARGS_MAX;
const COMMAND_BYTES: RangeInclusive<usize> = 64 << 10..=limits::COMMAND_BYTES_MAX;
const OUTPUT_BYTES: RangeInclusive<usize> = 64 << 10..=1 << 30;
const LOGIN_BYTES: RangeInclusive<usize> = 4 << 10..=1 << 20;

impl Settings {
    /// The limits from the settings, with defaults for the others.
    pub(crate) fn bounds(&self) -> Result<Bounds, String> {
        let mut bounds = Bounds::default();
        let numbers = [
            ("--connections-max", self.connections_max, CONNECTIONS, &mut bounds.connections_max),
            ("--command-args-max", self.command_args_max, COMMAND_ARGS, &mut bounds.command_args_max),
        ];
        for (flag, number, range, bound) in numbers {
            let Some(number) = number else { continue };
            if !range.contains(&number) {
                return Err(format!("{flag}: write a number between {} and {}", range.start(), range.end()));
            }
            *bound = number;
        }
        let sizes = [
            ("--command-max", &self.command_max, COMMAND_BYTES, &mut bounds.command_bytes_max),
            ("--output-max", &self.output_max, OUTPUT_BYTES, &mut bounds.output_bytes_max),
            ("--login-max", &self.login_max, LOGIN_BYTES, &mut bounds.unauthenticated_command_bytes_max),
        ];
        for (flag, text, range, bound) in sizes {
            let Some(bytes) = size::of_flag(flag, text.as_deref())? else { continue };
            let (least, most) = (size::format(*range.start()), size::format(*range.end()));
            let bytes = usize::try_from(bytes).ok().filter(|bytes| range.contains(bytes));
            *bound = bytes.ok_or_else(|| format!("{flag}: write a size between {least} and {most}"))?;
        }
        if let Some(seconds) = self.login_time {
            bounds.unauthenticated_time =
                Some(seconds).filter(|&n| n > 0).map(|n| Duration::from_secs(n.into()));
        }
        Ok(bounds)
    }
}

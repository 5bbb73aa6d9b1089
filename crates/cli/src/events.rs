// SPDX-License-Identifier: Apache-2.0
//! `tunny events`: who changed what, and what else happened around a time.

use crate::get::View;
use crate::Global;
use node::audit::Event;
use std::process::ExitCode;

const DAY: u64 = 86_400;

/// Show who changed what, or tried to, of a node or with --server of a region; with --around what happened near a time.
///
/// Drops that rose at 14:05? `tunny events --around 14:05` has what was changed shortly before.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only events near this time, UTC: 2026-03-01T14:05:00Z, 14:05 or 14:05:30 (of today, or of yesterday if that is still to come), or 10m (ago; also s, h and d).
    #[arg(long, value_name = "TIME", value_parser = time)]
    around: Option<Time>,
    /// How near: seconds, or a number with s, m, h or d.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = span, requires = "around")]
    within: u64,
    /// So many at most, the latest; 0: no limit. Exit status 3 says that there are older ones.
    #[arg(long, default_value_t = 0, value_name = "N")]
    limit: u64,
    /// And then those that come, until interrupted.
    #[arg(short, long)]
    watch: bool,
}

/// A time as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    /// Seconds since 1970.
    At(u64),
    /// Seconds of a day.
    OfDay(u64),
    /// Seconds ago.
    Ago(u64),
}

impl Time {
    fn seconds(self, now: u64) -> u64 {
        match self {
            Time::At(at) => at,
            Time::Ago(ago) => now.saturating_sub(ago),
            Time::OfDay(of) => {
                let today = now / DAY * DAY + of;
                if today > now + 60 {
                    today.saturating_sub(DAY)
                } else {
                    today
                }
            }
        }
    }
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let near = |e: &Event| {
        args.around.is_none_or(|time| e.time_ms.abs_diff(time.seconds(now) * 1000) <= args.within.saturating_mul(1000))
    };
    let view = View { format: global.output, watch: args.watch, ..View::default() };
    crate::history::events(&global.client()?, args.limit, &view, near)
}

/// A number of seconds, or one with a unit.
fn span(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no span of time: write 30, 30s, 10m, 2h or 1d");
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => DAY,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)
}

fn time(text: &str) -> Result<Time, String> {
    let wrong = || format!("`{text}` is no time: write 2026-03-01T14:05:00Z, 14:05 or 10m (ago)");
    let of_day = |text: &str| {
        let parts: Vec<u64> =
            text.split(':').map(|p| p.parse().ok().filter(|_| p.len() == 2)).collect::<Option<_>>()?;
        match parts[..] {
            [h, m] if h < 24 && m < 60 => Some(h * 3600 + m * 60),
            [h, m, s] if h < 24 && m < 60 && s < 60 => Some(h * 3600 + m * 60 + s),
            _ => None,
        }
    };
    if let Some((date, clock)) = text.split_once(['T', ' ']) {
        let clock = of_day(clock.strip_suffix('Z').unwrap_or(clock)).ok_or_else(wrong)?;
        return Ok(Time::At(days(date).ok_or_else(wrong)? * DAY + clock));
    }
    if text.contains(':') {
        return of_day(text).map(Time::OfDay).ok_or_else(wrong);
    }
    span(text).ok().filter(|_| text.ends_with(|c: char| c.is_ascii_alphabetic())).map(Time::Ago).ok_or_else(wrong)
}

/// Days since 1970 of a date.
fn days(date: &str) -> Option<u64> {
    let parts: Vec<u64> = date.split('-').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let [year @ 1970..=9999, month @ 1..=12, day @ 1..=31] = parts[..] else { return None };
    // Counted in eras of 400 years that begin in March, as `node::audit::utc` does.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_era = year % 400;
    let of_year = (153 * month + 2) / 5 + day - 1;
    Some(year / 400 * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for at in [0, 951_782_399, 951_782_400, 1_767_225_599, 1_774_000_000, 4_107_542_400] {
            let text = node::audit::utc(at);
            assert_eq!(time(&text), Ok(Time::At(at)), "{text}");
            assert_eq!(time(text.trim_end_matches('Z')), Ok(Time::At(at)), "{text}");
        }
        assert_eq!(time("14:05"), Ok(Time::OfDay(50_700)));
        assert_eq!(time("14:05:07"), Ok(Time::OfDay(50_707)));
        assert_eq!(time("10m"), Ok(Time::Ago(600)));
        for wrong in ["", "10", "m", "24:00", "1:5", "14:60", "2026-13-01T00:00:00Z", "2026-03-01", "noon", "10y"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        // In the morning, "23:00" is that of yesterday.
        let now = 100 * DAY + 8 * 3600;
        assert_eq!(Time::OfDay(23 * 3600).seconds(now), 99 * DAY + 23 * 3600);
        assert_eq!(Time::OfDay(7 * 3600).seconds(now), 100 * DAY + 7 * 3600);
        assert_eq!(Time::Ago(60).seconds(now), now - 60);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Times of the calendar.

use std::fmt;
use std::str::FromStr;

/// The last second that can be written: the end of 9999-12-30, in UTC.
const LAST: u64 = 253_402_207_200;

/// A time to the second, as in RFC 3339: `2026-11-11T00:00:00Z`. Whatever offset it is written with, it is shown in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Seconds since 1970 in UTC.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl FromStr for Timestamp {
    type Err = String;

    fn from_str(s: &str) -> Result<Timestamp, String> {
        let time: Option<jiff::Timestamp> = s.parse().ok();
        let second = time.and_then(|t| u64::try_from(t.as_second()).ok()).filter(|second| *second <= LAST);
        second.map(Timestamp).ok_or_else(|| format!("`{}` is no time with an offset", crate::plain(s)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::from_second(self.0 as i64);
        write!(f, "{}", time.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_utc_and_read_back() {
        let read = |s: &str| s.parse::<Timestamp>().map(|t| t.to_string());
        assert_eq!(read("2026-11-11T00:00:00Z").unwrap(), "2026-11-11T00:00:00Z");
        assert_eq!(read("2026-11-11T08:00:00+08:00").unwrap(), "2026-11-11T00:00:00Z");
        assert_eq!("1970-01-01T00:00:01Z".parse::<Timestamp>().unwrap().seconds(), 1);
        assert_eq!(Timestamp(LAST).to_string().parse(), Ok(Timestamp(LAST)));
        for wrong in ["", "2026-11-11", "2026-11-11T00:00:00", "1969-12-31T23:59:59Z", "soon"] {
            assert!(read(wrong).is_err_and(|why| why.contains("is no time")), "{wrong}");
        }
    }
}

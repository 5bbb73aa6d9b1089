// SPDX-License-Identifier: Apache-2.0
//! Quantities that people write: `10Gbit`, `1.5Mpps`, `64KiB`. Each has one canonical text that parses back to the same
//! number.

/// Units of a quantity, largest first.
type Units = &'static [(&'static str, u64)];

const BITS: Units =
    &[("Tbit", 1_000_000_000_000), ("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
const PACKET_RATE: Units = &[("Gpps", 1_000_000_000), ("Mpps", 1_000_000), ("kpps", 1_000), ("pps", 1)];
const BYTES: Units = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Bits per second.
pub fn parse_bits(s: &str) -> Result<u64, String> {
    parse(s, BITS, "a bandwidth such as 10Gbit")
}

/// Packets per second.
pub fn parse_packets(s: &str) -> Result<u64, String> {
    parse(s, PACKET_RATE, "a packet rate such as 1Mpps")
}

/// Bytes.
pub fn parse_bytes(s: &str) -> Result<u64, String> {
    parse(s, BYTES, "a size such as 64KiB")
}

/// Text of bits per second.
pub fn show_bits(v: u64) -> String {
    show(v, BITS)
}

/// Text of packets per second.
pub fn show_packets(v: u64) -> String {
    show(v, PACKET_RATE)
}

/// Text of bytes.
pub fn show_bytes(v: u64) -> String {
    show(v, BYTES)
}

fn parse(s: &str, units: Units, what: &str) -> Result<u64, String> {
    let wrong = || {
        let names: Vec<&str> = units.iter().map(|(n, _)| *n).collect();
        format!("`{s}` is not {what}: a number and a unit ({})", names.join(", "))
    };
    let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = s.split_at(digits);
    let unit = unit.trim_start();
    let (_, scale) = units.iter().find(|(n, _)| *n == unit).ok_or_else(wrong)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let valid = |d: &str, max: usize| d.len() <= max && d.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !valid(whole, 20) || !valid(part, 18) || (number.contains('.') && part.is_empty()) {
        return Err(wrong());
    }
    let too_large = || format!("`{s}` is too large");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut value = u128::from(whole) * u128::from(*scale);
    if !part.is_empty() {
        let digits: u128 = part.parse().map_err(|_| wrong())?;
        let fraction = digits * u128::from(*scale);
        let ten = 10u128.pow(part.len() as u32);
        if !fraction.is_multiple_of(ten) {
            return Err(format!("`{s}` is not a whole number of {}", units.last().map_or("", |u| u.0)));
        }
        value += fraction / ten;
    }
    u64::try_from(value).map_err(|_| too_large())
}

/// The largest unit that gives a whole number.
fn show(v: u64, units: Units) -> String {
    let (name, scale) =
        units.iter().find(|(_, s)| v != 0 && v.is_multiple_of(*s)).or(units.last()).copied().unwrap_or(("", 1));
    format!("{}{name}", v / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_quantities() {
        assert_eq!(parse_bits("10Gbit"), Ok(10_000_000_000));
        assert_eq!(parse_bits("2.5Gbit"), Ok(2_500_000_000));
        assert_eq!(parse_bits("1 kbit"), Ok(1_000));
        assert_eq!(parse_packets("1Mpps"), Ok(1_000_000));
        assert_eq!(parse_bytes("64KiB"), Ok(65_536));
        assert_eq!(parse_bytes("1.5kB"), Ok(1_500));
    }

    #[test]
    fn what_is_no_quantity() {
        for s in
            ["", "10", "Gbit", "10gbit", "10 Gbit/s", "-1Gbit", "1.Gbit", ".5Gbit", "1.2.3Gbit", "0.5bit", "1e3bit"]
        {
            assert!(parse_bits(s).is_err(), "{s}");
        }
        assert!(parse_bits("99999999999Tbit").unwrap_err().contains("too large"));
        assert!(parse_bits("99999999999999999999999999bit").is_err());
    }

    #[test]
    fn text_parses_back() {
        for v in [0, 1, 999, 1000, 1024, 65536, 1500, 1 << 30, u64::MAX, 10_000_000_000] {
            assert_eq!(parse_bits(&show_bits(v)), Ok(v));
            assert_eq!(parse_packets(&show_packets(v)), Ok(v));
            assert_eq!(parse_bytes(&show_bytes(v)), Ok(v));
        }
        assert_eq!(show_bytes(65536), "64KiB");
    }
}

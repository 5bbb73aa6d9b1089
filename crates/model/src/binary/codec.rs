// SPDX-License-Identifier: Apache-2.0
//! Numbers, texts and addresses as bytes, and back from bytes that may say anything.

use crate::doc::check_name;
use crate::kinds::*;
use crate::prefix::{own_address_fault, underlay_fault, Mac, Prefix};
use std::net::IpAddr;

/// Longest text in a binary form (a gateway's document).
const TEXT_MAX: usize = 1 << 20;

/// Appends a number, seven bits a byte.
pub fn put_u64(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

pub(crate) fn put_text(out: &mut Vec<u8>, s: &str) {
    put_u64(out, s.len() as u64);
    out.extend_from_slice(s.as_bytes());
}

pub(crate) fn put_mac(out: &mut Vec<u8>, mac: Mac) {
    out.extend_from_slice(&mac.0.to_be_bytes()[2..]);
}

pub(crate) fn put_address(out: &mut Vec<u8>, a: IpAddr) {
    match a {
        IpAddr::V4(a) => {
            out.push(4);
            out.extend_from_slice(&a.octets());
        }
        IpAddr::V6(a) => {
            out.push(6);
            out.extend_from_slice(&a.octets());
        }
    }
}

/// Family and length, then the bytes that the length covers.
pub(crate) fn put_prefix(out: &mut Vec<u8>, p: Prefix) {
    let len = p.prefix_len();
    let bytes = len.div_ceil(8) as usize;
    match p.addr() {
        IpAddr::V4(a) => {
            out.extend_from_slice(&[4, len]);
            out.extend_from_slice(&a.octets()[..bytes]);
        }
        IpAddr::V6(a) => {
            out.extend_from_slice(&[6, len]);
            out.extend_from_slice(&a.octets()[..bytes]);
        }
    }
}

pub(crate) fn put_meter(out: &mut Vec<u8>, meter: &Meter) {
    for pair in [meter.bandwidth, meter.packets] {
        let p = pair.unwrap_or(RatePair { committed: 0, committed_burst: 0, peak: 0, peak_burst: 0 });
        [p.committed, p.committed_burst, p.peak, p.peak_burst].iter().for_each(|v| put_u64(out, *v));
    }
}

/// A cursor over bytes. Every read says what was wanted if the bytes do not hold it.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What is wrong with the bytes.
pub type Fault = String;

impl<'a> Reader<'a> {
    /// At the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// Whether all has been read.
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Fault> {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        let found = rest.get(..n).ok_or_else(|| format!("{n} bytes wanted, {} left", rest.len()))?;
        self.at += n;
        Ok(found)
    }

    /// The next byte.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, Fault> {
        let b = *self.bytes.get(self.at).ok_or("a byte wanted, none left")?;
        self.at += 1;
        Ok(b)
    }

    /// The next number.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Fault> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            if shift == 63 && b > 1 {
                break;
            }
            v |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    pub(crate) fn below(&mut self, limit: u64, what: &str) -> Result<u64, Fault> {
        let v = self.u64()?;
        if v < limit {
            Ok(v)
        } else {
            Err(format!("{what} {v} is not below {limit}"))
        }
    }

    /// A count of things of at least `size` bytes each: more cannot be there than bytes are left.
    pub(crate) fn count(&mut self, size: usize) -> Result<usize, Fault> {
        let v = self.u64()?;
        let left = (self.bytes.len() - self.at) as u64;
        if v <= left / size as u64 {
            Ok(v as usize)
        } else {
            Err(format!("a count of {v} does not fit in {left} bytes"))
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Fault> {
        let n = self.below(TEXT_MAX as u64, "a text's length")?;
        std::str::from_utf8(self.take(n as usize)?).map_err(|_| "a text is not UTF-8".into())
    }

    pub(crate) fn name(&mut self) -> Result<&'a str, Fault> {
        let s = self.text()?;
        check_name(s).map(|()| s)
    }

    pub(crate) fn mac(&mut self) -> Result<Mac, Fault> {
        let v = self.take(6)?.iter().fold(0, |v, b| v << 8 | u64::from(*b));
        let ours = v != 0 && !Mac(v).is_group();
        ours.then_some(Mac(v)).ok_or_else(|| format!("{v:012x} is no unicast MAC address"))
    }

    pub(crate) fn address(&mut self) -> Result<IpAddr, Fault> {
        let a = match self.byte()? {
            4 => IpAddr::from(<[u8; 4]>::try_from(self.take(4)?).map_err(|e| e.to_string())?),
            6 => IpAddr::from(<[u8; 16]>::try_from(self.take(16)?).map_err(|e| e.to_string())?),
            f => return Err(format!("{f} is no address family")),
        };
        // Not more than ever was asked: what was written before an address became one that is never forwarded can be read.
        let fault = underlay_fault(a).filter(|_| own_address_fault(a).is_some());
        fault.map_or(Ok(a), |why| Err(format!("{a}: {why}")))
    }

    pub(crate) fn prefix(&mut self) -> Result<Prefix, Fault> {
        let (family, len) = (self.byte()?, self.byte()?);
        let max = match family {
            4 => 32,
            6 => 128,
            f => return Err(format!("{f} is no address family")),
        };
        if len > max {
            return Err(format!("{len} is no prefix length"));
        }
        let bytes = self.take(len.div_ceil(8) as usize)?;
        let number = bytes.iter().enumerate().fold(0u128, |v, (i, b)| v | u128::from(*b) << (120 - 8 * i));
        let addr = match family {
            4 => IpAddr::V4(((number >> 96) as u32).into()),
            _ => IpAddr::V6(number.into()),
        };
        let p = Prefix::new_assert(addr, len);
        (p.trunc() == p).then_some(p).ok_or_else(|| format!("{p} has bits behind its length"))
    }

    pub(crate) fn shape(&mut self) -> Result<Shape, Fault> {
        let numbers = [self.u64()?, self.u64()?, self.u64()?, self.u64()?, self.u64()?];
        Shape::of_numbers(numbers).ok_or_else(|| "a shape is out of range".into())
    }

    pub(crate) fn meter(&mut self) -> Result<Box<Meter>, Fault> {
        let mut pairs = [None, None];
        // The same ranges as in the documents: rates, then bursts.
        let ranges = [
            (1_000, 1_000_000_000_000, u64::from(abi::FRAME_BYTES_MAX), 4 << 30),
            (1, 1_000_000_000, 1, u64::from(u32::MAX)),
        ];
        for (pair, (rate_min, rate_max, burst_min, burst_max)) in pairs.iter_mut().zip(ranges) {
            let [committed, committed_burst, peak, peak_burst] = [self.u64()?, self.u64()?, self.u64()?, self.u64()?];
            if committed == 0 {
                continue;
            }
            let rates = rate_min <= committed && committed <= peak && peak <= rate_max;
            let bursts = [committed_burst, peak_burst].iter().all(|b| (burst_min..=burst_max).contains(b));
            if !rates || !bursts {
                return Err("a meter is out of range".into());
            }
            *pair = Some(RatePair { committed, committed_burst, peak, peak_burst });
        }
        let [bandwidth, packets] = pairs;
        Ok(Box::new(Meter { bandwidth, packets }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for v in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_u64(&mut out, v);
            assert_eq!(Reader::new(&out).u64(), Ok(v));
            assert!(Reader::new(&out[..out.len() - 1]).u64().is_err());
        }
        assert!(Reader::new(&[0xff; 10]).u64().is_err());
    }

    #[test]
    fn prefixes_come_back() {
        for s in ["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "10.128.0.0/9", "::/0", "fd00:a::/48", "fd00::1/128"] {
            let (p, mut out): (Prefix, _) = (s.parse().unwrap(), Vec::new());
            put_prefix(&mut out, p);
            assert_eq!(Reader::new(&out).prefix(), Ok(p));
        }
        assert!(Reader::new(&[4, 33, 0, 0, 0, 0, 0]).prefix().is_err());
        assert!(Reader::new(&[4, 7, 0xff]).prefix().unwrap_err().contains("behind"));
    }
}

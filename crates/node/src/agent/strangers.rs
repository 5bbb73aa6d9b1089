// SPDX-License-Identifier: Apache-2.0
//! Connections that have not proved who they are.
//!
//! They are counted apart from nodes, and none of them keeps a node out: a handshake has a time limit as a whole, however slowly its bytes
//! come, and a newcomer is always let in. If there are too many, the oldest connection of the source with the most of them
//! ends instead, so that a flood from one host (or one IPv6 subnet) only pushes out itself. What they do is said once a minute.

use parking_lot::Mutex;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Strangers at most.
pub(super) const STRANGERS_MAX: usize = 128;
/// Time between two lines of the log about them.
const MINUTE: Duration = Duration::from_secs(60);

struct Stranger {
    number: u64,
    source: u128,
    stream: TcpStream,
}

#[derive(Default)]
struct Said {
    at: Option<Instant>,
    /// Since then, not said yet.
    count: u64,
    last: Option<(SocketAddr, String)>,
}

/// Those that are connected now.
#[derive(Default)]
pub(super) struct Strangers {
    list: Mutex<Vec<Stranger>>,
    said: Mutex<Said>,
}

/// What shares one place: an IPv4 address, or an IPv6 subnet of 64 bits.
fn source(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
        IpAddr::V6(a) => a.to_bits() >> 64 << 64,
    }
}

/// The place of the one that has to go: the oldest of the source that has the most.
fn victim(list: &[Stranger]) -> Option<usize> {
    let of = |source: u128| list.iter().filter(|s| s.source == source).count();
    let (at, _) = list.iter().enumerate().max_by_key(|(at, s)| (of(s.source), std::cmp::Reverse(*at)))?;
    Some(at)
}

impl Strangers {
    /// Lets one in, whoever has to go for it.
    pub(super) fn enter(&self, number: u64, from: SocketAddr, stream: &TcpStream) -> Result<()> {
        let stream = stream.try_clone()?;
        let mut list = self.list.lock();
        let gone = if list.len() >= STRANGERS_MAX { victim(&list).map(|at| list.remove(at)) } else { None };
        list.push(Stranger { number, source: source(from.ip()), stream });
        drop(list);
        if let Some(gone) = gone {
            // Its thread sees the end.
            let _ = gone.stream.shutdown(Shutdown::Both);
        }
        Ok(())
    }

    /// One is gone, or has proved who it is.
    pub(super) fn leave(&self, number: u64) {
        self.list.lock().retain(|s| s.number != number);
    }

    /// Notes why one was not served.
    pub(super) fn note(&self, from: SocketAddr, why: String) {
        let mut said = self.said.lock();
        said.count += 1;
        said.last = Some((from, why));
        drop(said);
        self.tell();
    }

    /// Says what was noted, at most once a minute.
    pub(super) fn tell(&self) {
        let mut said = self.said.lock();
        if said.count == 0 || said.at.is_some_and(|at| at.elapsed() < MINUTE) {
            return;
        }
        if let Some((from, why)) = said.last.take() {
            let n = said.count;
            let others = if n > 1 {
                format!("{n} connections since the last such line, the latest ")
            } else {
                "a connection ".into()
            };
            tracing::warn!(
                "{others}from {from}, did not prove to be a node: {}; more are said in a minute",
                model::plain(&why)
            );
        }
        (said.at, said.count) = (Some(Instant::now()), 0);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.lock().len()
    }
}

/// A stream that ends at a certain time, however slowly bytes come and go.
pub(super) struct Until<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl<'a> Until<'a> {
    pub(super) fn new(stream: &'a TcpStream, limit: Duration) -> Until<'a> {
        Until { stream, end: Instant::now() + limit }
    }

    fn left(&self) -> Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(Error::new(ErrorKind::TimedOut, "the handshake took too long")),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        let mut stream = self.stream;
        match stream.read(buffer) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                Err(Error::new(ErrorKind::TimedOut, "the handshake took too long"))
            }
            other => other,
        }
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        let mut stream = self.stream;
        stream.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_pushes_out_itself_and_its_oldest_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let strangers = Strangers::default();
        let enter =
            |number: u64, from: &str| strangers.enter(number, format!("{from}:1").parse().unwrap(), &stream).unwrap();
        let has = |number: u64| strangers.list.lock().iter().any(|s| s.number == number);
        enter(0, "192.0.2.1");
        for number in 1..1000 {
            enter(number, "198.51.100.7");
        }
        assert!(has(0) && has(999) && has(999 - STRANGERS_MAX as u64 + 2) && !has(999 - STRANGERS_MAX as u64 + 1));
        // Addresses of one subnet are one source.
        for number in 1000..2000_u64 {
            enter(number, &format!("[2001:db8::{:x}]", number));
        }
        assert!(has(0) && strangers.len() == STRANGERS_MAX);
        strangers.leave(0);
        assert!(!has(0) && strangers.len() == STRANGERS_MAX - 1);
    }

    #[test]
    fn strangers_are_one_line_a_minute() {
        let strangers = Strangers::default();
        let from = "192.0.2.1:7".parse().unwrap();
        (0..100).for_each(|_| strangers.note(from, "nonsense".into()));
        let mut said = strangers.said.lock();
        assert!(said.at.is_some() && said.count == 99, "the first was said, the rest waits");
        said.at = Some(Instant::now().checked_sub(MINUTE).unwrap());
        drop(said);
        strangers.tell();
        assert_eq!(strangers.said.lock().count, 0);
    }

    #[test]
    fn bytes_that_trickle_do_not_prolong_a_handshake() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        std::thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let e = Until::new(&stream, Duration::from_millis(300)).read_exact(&mut [0; 4096]).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(2) && e.kind() == ErrorKind::TimedOut, "{e}");
    }
}

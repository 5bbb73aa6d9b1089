// SPDX-License-Identifier: Apache-2.0
//! Flows of the kernel's TCP over the rig of a filter: a flow is a connection, a request for so many bytes, the bytes, and the end.
use crate::inline::{become_an_end, InlineRig, Tenants};
use crate::sizes::Sizes;
use crate::Error;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: u16 = 80;
/// A flow that waits longer for anything has not come through.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Flows that are served at a time, and that a client has under way.
const AT_ONCE: usize = 32;
static BYTES: [u8; 1 << 16] = [7; 1 << 16];

/// The servers: each request for n bytes gets n bytes; a connection that asks for none gets one and is kept.
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn answer(mut stream: TcpStream, kept: &Mutex<Vec<TcpStream>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut wanted = [0; 4];
    stream.read_exact(&mut wanted)?;
    let mut left = u32::from_be_bytes(wanted) as usize;
    if left == 0 {
        stream.write_all(&BYTES[..1])?;
        kept.lock().push(stream);
        return Ok(());
    }
    while left > 0 {
        let part = left.min(BYTES.len());
        stream.write_all(&BYTES[..part])?;
        left -= part;
    }
    Ok(())
}

impl Server {
    /// Listens on every address of the servers.
    pub fn start(rig: &InlineRig) -> Result<Server, Error> {
        let listener =
            rig.servers.inside(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(Error::io("listening")))?;
        let (listener, stop) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let kept = Arc::new(Mutex::new(Vec::new()));
        let thread = |_| {
            let (listener, stop, kept) = (listener.clone(), stop.clone(), kept.clone());
            std::thread::spawn(move || {
                // The client's threads say it if that is not allowed.
                let _ = become_an_end();
                while !stop.load(Ordering::Relaxed) {
                    let Ok((stream, _)) = listener.accept() else { return };
                    // A client that went away is its own loss: it counts there.
                    let _ = answer(stream, &kept);
                }
            })
        };
        let threads = (0..AT_ONCE).map(thread).collect();
        Ok(Server { stop, threads })
    }

    /// Ends it, and with it all connections that it kept.
    pub fn stop(self, rig: &InlineRig) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        rig.servers.inside(|| {
            // Wakes those who wait for connections.
            (0..AT_ONCE).for_each(|_| drop(TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))));
            Ok(())
        })?;
        self.threads.into_iter().for_each(|t| drop(t.join()));
        Ok(())
    }
}

/// Asks a server for so many bytes; None if they did not come through. 0 bytes: the connection is to be kept. For threads inside the client.
pub fn flow(server: u32, bytes: u32) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::from(server), PORT)), PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(&bytes.to_be_bytes()).ok()?;
    let mut buffer = vec![0; 1 << 16];
    let mut left = bytes.max(1) as usize;
    while left > 0 {
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            n => left = left.saturating_sub(n),
        }
    }
    Some(stream)
}

/// A flow that is to begin at a time.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    at: Duration,
    server: u32,
    bytes: u32,
}

/// Flows of a distribution, none larger than `cap` bytes, that come by chance (Poisson), `rate` bytes a second in the mean, for a while.
pub fn schedule(sizes: &Sizes, cap: f64, rate: f64, tenants: Tenants, length: Duration, seed: u64) -> Vec<Due> {
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut unit = move || ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let gap = sizes.mean(cap) / rate;
    let (mut at, mut out) = (0.0, Vec::new());
    loop {
        at -= unit().ln() * gap;
        if at >= length.as_secs_f64() && !out.is_empty() {
            return out;
        }
        let server =
            tenants.server((unit() * f64::from(tenants.count)) as u32, (unit() * f64::from(tenants.servers)) as u32);
        out.push(Due { at: Duration::from_secs_f64(at), server, bytes: sizes.at(unit()).min(cap).max(1.0) as u32 });
    }
}

/// What scheduled flows did.
#[derive(Debug, Default)]
pub struct Flows {
    /// From when each was due until it was complete, µs.
    pub us: Vec<f64>,
    /// Bytes of all.
    pub bytes: u64,
    /// Wall time of all, seconds.
    pub seconds: f64,
}

/// Runs flows when they are due, at most [`AT_ONCE`] under way. All must come through.
pub fn run(rig: &InlineRig, due: &[Due]) -> Result<Flows, Error> {
    let (next, failed, us) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::with_capacity(due.len())));
    let began = Instant::now();
    rig.client.inside(|| {
        // Threads inherit network namespace, CPU and priority of the one that starts them.
        become_an_end()?;
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(due.len()) {
                scope.spawn(|| {
                    while let Some(d) = due.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Some(wait) = d.at.checked_sub(began.elapsed()) {
                            std::thread::sleep(wait);
                        }
                        match flow(d.server, d.bytes) {
                            Some(_) => {
                                let took = began.elapsed().saturating_sub(d.at).as_secs_f64() * 1e6;
                                us.lock().push(took);
                            }
                            None => drop(failed.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
        });
        Ok(())
    })?;
    let failed = failed.into_inner();
    if failed > 0 {
        let why = format!("{failed} of {} did not come through in {PATIENCE:?}", due.len());
        return Err(Error::Failed { what: "flows".into(), why });
    }
    let bytes = due.iter().map(|d| u64::from(d.bytes)).sum();
    Ok(Flows { us: us.into_inner(), bytes, seconds: began.elapsed().as_secs_f64() })
}

/// The same flows, each as soon as there is a place.
pub fn at_once(due: &[Due]) -> Vec<Due> {
    due.iter().map(|d| Due { at: Duration::ZERO, ..*d }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::DISTRIBUTIONS;

    #[test]
    fn a_schedule_has_the_rate_that_was_asked_for() {
        let tenants = Tenants { count: 3, servers: 2 };
        for (n, sizes) in DISTRIBUTIONS.iter().enumerate() {
            let due = schedule(sizes, 1e6, 1e9, tenants, Duration::from_secs(20), 7 + n as u64);
            assert!(
                due.is_sorted_by_key(|d| d.at) && due.iter().all(|d| d.bytes as f64 <= 1e6 && d.server >> 16 == 0x0a00)
            );
            let bytes: f64 = due.iter().map(|d| f64::from(d.bytes)).sum();
            assert!((bytes / 20e9 - 1.0).abs() < 0.1, "{}: {bytes}", sizes.name);
        }
        assert_eq!(schedule(&DISTRIBUTIONS[0], 1e6, 1.0, tenants, Duration::from_millis(1), 1).len(), 1, "never none");
    }
}

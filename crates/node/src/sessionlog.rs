// SPDX-License-Identifier: Apache-2.0
//! The session log: one record for the start and one for the end of each session, to a file as JSON lines or to an IPFIX
//! collector.
//!
//! Workers hand records over by a bounded queue and never wait: what finds it full is lost, and counted. A thread writes.
//! A file that was moved away (logrotate) is opened anew within a second.

use crate::counters::monotonic_ns;
use crate::ipfix::Exporter;
use abi::Vni;
use conntrack::{Direction, EndReason, Ended, InnerKey, NewSession, OuterKey, Owner};
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Records that wait at most.
const QUEUE: usize = 65_536;
/// Time after which what was written reaches the file, and a moved file is noticed.
const FLUSH: Duration = Duration::from_millis(200);

/// A difference of the clocks that means that the wall clock was set.
const CLOCK_SET_MS: i64 = 500;

/// What is told of a session.
#[derive(Clone, Debug)]
pub struct Record {
    /// A connection that the rules refused: nothing began. The side that wanted to begin stands as the VM.
    pub refused: Option<Refusal>,
    /// Whether it is between two ends inside; then `outer` names the other end's VNI alone.
    pub pair: bool,
    /// The VM's side.
    pub inner: InnerKey,
    /// The public side.
    pub outer: OuterKey,
    /// Whether the remote side began it.
    pub from_outside: bool,
    /// Milliseconds since 1970; 0: not known, since a state table keeps no times.
    pub start: u64,
    /// The end, if it has ended.
    pub end: Option<End>,
}

/// What refused a connection.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The group and its rule; none: no rule matched.
    pub rule: Option<(Arc<str>, String)>,
}

/// How a session ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Milliseconds since 1970.
    pub time: u64,
    /// Why.
    pub reason: EndReason,
    /// Last state.
    pub state: &'static str,
    /// Packets, and bytes of inner IP packets, both ways; none: a state table does not count them.
    pub counts: Option<(u64, u64)>,
}

impl Record {
    /// As one JSON object. `vpc`: the name of the VPC, if it is known.
    pub fn to_json(&self, vpc: Option<&str>) -> serde_json::Value {
        let event = match (&self.refused, &self.end) {
            (Some(_), _) => "denied",
            (None, Some(_)) => "end",
            (None, None) => "start",
        };
        let mut out = json!({
            "event": event,
            "verdict": if self.refused.is_some() { "deny" } else { "allow" },
            "vpc": vpc,
            "vni": self.inner.vni().0,
            "protocol": self.inner.proto(),
            "vm": self.inner.vm().to_string(),
            "vmPort": self.inner.vm_port(),
            "public": self.outer.public().to_string(),
            "publicPort": self.outer.public_port(),
            "remote": self.inner.remote().to_string(),
            "remotePort": self.inner.remote_port(),
            "direction": if self.from_outside { "in" } else { "out" },
        });
        if self.start > 0 {
            out["startMs"] = self.start.into();
        }
        if self.pair {
            // Nothing is translated.
            for name in ["public", "publicPort"] {
                out.as_object_mut().map(|o| o.remove(name));
            }
            // Beyond a wire nobody has one.
            if self.outer.vni_bits() != Vni(0) {
                out["remoteVni"] = self.outer.vni_bits().0.into();
            }
        }
        if let Some(refused) = &self.refused {
            if let Some((kind, code)) = self.icmp() {
                // It has no ports.
                for name in ["vmPort", "publicPort", "remotePort"] {
                    out.as_object_mut().map(|o| o.remove(name));
                }
                (out["icmpType"], out["icmpCode"]) = (kind.into(), code.into());
            }
            if let Some((group, rule)) = &refused.rule {
                out["group"] = group.to_string().into();
                out["rule"] = rule.clone().into();
            }
        }
        if let Some(e) = &self.end {
            out["endMs"] = e.time.into();
            out["reason"] = e.reason.name().into();
            out["state"] = e.state.into();
            if let Some((packets, bytes)) = e.counts {
                out["packets"] = packets.into();
                out["bytes"] = bytes.into();
            }
        }
        out
    }
}

impl Record {
    /// Type and code of an ICMP message that was refused.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        let icmp =
            self.refused.is_some() && matches!(self.inner.proto(), wire::protocol::ICMP | wire::protocol::ICMPV6);
        let service = if self.from_outside { self.inner.vm_port() } else { self.inner.remote_port() };
        icmp.then_some(((service >> 8) as u8, service as u8))
    }
}

struct Writing {
    target: model::SessionLog,
    thread: JoinHandle<()>,
}

/// How the writing goes.
#[derive(Default)]
struct Health {
    /// Records that were not written.
    lost: AtomicU64,
    /// Why nothing can be written at present.
    trouble: Mutex<Option<String>>,
}

impl Health {
    /// `list` could not be written.
    fn fails(&self, list: &[Record], why: String) {
        self.lost.fetch_add(list.len() as u64, Ordering::Relaxed);
        let mut trouble = self.trouble.lock();
        if trouble.as_ref() != Some(&why) {
            tracing::warn!("{why}; it is tried again");
            *trouble = Some(why);
        }
    }

    fn goes_well(&self) {
        *self.trouble.lock() = None;
    }
}

/// Names of VPCs by VNI, while the log is on. Those that went stay a while, since their sessions end after them.
type Names = Arc<RwLock<HashMap<Vni, model::Name>>>;

/// Names of VPCs that went are forgotten when they are so many more than the others.
const GONE_MAX: usize = 1024;

/// The log.
#[derive(Default)]
pub struct SessionLog {
    names: Names,
    queue: RwLock<Option<SyncSender<Record>>>,
    writing: Mutex<Option<Writing>>,
    on: AtomicBool,
    health: Arc<Health>,
    /// What turns times of CLOCK_MONOTONIC into those of the log.
    offset: AtomicI64,
}

/// Wall-clock milliseconds minus those of CLOCK_MONOTONIC.
fn offset_now() -> i64 {
    crate::audit::now_ms() as i64 - (monotonic_ns() / 1_000_000) as i64
}

impl SessionLog {
    /// Wall-clock milliseconds of a time of CLOCK_MONOTONIC. The same time always gives the same, unless the clock was set.
    fn wall_ms(&self, at: u64) -> u64 {
        let (now, mut offset) = (offset_now(), self.offset.load(Ordering::Relaxed));
        if (now - offset).abs() > CLOCK_SET_MS {
            offset = now;
            self.offset.store(now, Ordering::Relaxed);
        }
        (at / 1_000_000).saturating_add_signed(offset)
    }

    /// The same for the beginning of a session, as exact as sessions keep it: its end must tell the same.
    fn start_ms(&self, at: u64) -> u64 {
        self.wall_ms(at >> abi::SESSION_TIME_SHIFT << abi::SESSION_TIME_SHIFT)
    }

    /// The names of VPCs: of those of `vnis` anew, or of all.
    pub fn name(&self, model: &model::Model, vnis: Option<&[Vni]>) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let mut names = self.names.write();
        match vnis.filter(|_| names.len() <= 2 * model.counts().of(model::Kind::Vpc) as usize + GONE_MAX) {
            Some(vnis) => names.extend(vnis.iter().filter_map(|vni| Some((*vni, model.vpc_by_vni(*vni)?.clone())))),
            None => *names = model.vpc_names().collect(),
        }
    }

    /// Where to write from now on; `None` ends it. Whether that is elsewhere than before.
    pub fn set(&self, target: Option<&model::SessionLog>) -> bool {
        let target = target.cloned().unwrap_or_default();
        let mut writing = self.writing.lock();
        if writing.as_ref().map_or(model::SessionLog::Off, |w| w.target.clone()) == target {
            return false;
        }
        self.on.store(false, Ordering::Relaxed);
        // Without a sender the thread writes what is left and ends.
        *self.queue.write() = None;
        if let Some(old) = writing.take() {
            let _ = old.thread.join();
        }
        if target == model::SessionLog::Off {
            return true;
        }
        let (sender, receiver) = sync_channel(QUEUE);
        let (to, health, names) = (target.clone(), self.health.clone(), self.names.clone());
        health.goes_well();
        match std::thread::Builder::new().name("tunny-log".into()).spawn(move || write(&to, &receiver, &health, &names))
        {
            Ok(thread) => {
                *self.queue.write() = Some(sender);
                *writing = Some(Writing { target, thread });
                self.on.store(true, Ordering::Relaxed);
            }
            Err(e) => tracing::error!("the session log cannot be written: {e}"),
        }
        true
    }

    /// Why nothing can be written at present.
    pub fn trouble(&self) -> Option<String> {
        self.health.trouble.lock().clone()
    }

    /// Records that were lost since their writer was slow or could not write.
    pub fn lost(&self) -> u64 {
        self.health.lost.load(Ordering::Relaxed)
    }

    fn put(&self, record: Record) {
        let queue = self.queue.read();
        let Some(queue) = queue.as_ref() else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(record) {
            self.health.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A session began.
    pub fn began(&self, new: &NewSession, now: u64) {
        if self.on.load(Ordering::Relaxed) {
            let from_outside = new.direction == Direction::In;
            let (refused, pair) = (None, new.owner == Owner::Filter);
            let start = self.start_ms(now);
            self.put(Record { refused, pair, inner: new.inner, outer: new.outer, from_outside, start, end: None });
        }
    }

    /// The rules did not let a connection begin.
    pub fn refused(&self, r: &gateway::Refused<'_>) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let (proto, port) = ((r.service >> 16) as u8, r.service as u16);
        let vm = r.from.vni.or(r.to.vni).unwrap_or_default();
        let (local, remote, from_outside) = match r.from.vni {
            Some(_) => (r.from.addr, r.to.addr, false),
            None => (r.to.addr, r.from.addr, true),
        };
        let ports = if from_outside { (port, r.port) } else { (r.port, port) };
        let inner = match (local, remote) {
            (IpAddr::V4(a), IpAddr::V4(b)) => InnerKey::v4(vm, proto, a.to_bits(), ports.0, b.to_bits(), ports.1),
            (IpAddr::V6(a), IpAddr::V6(b)) => InnerKey::v6(vm, proto, a.to_bits(), ports.0, b.to_bits(), ports.1),
            _ => return,
        };
        let rule = r.verdict.rule().map(|(g, r)| (g.spec().name.clone(), r.to_string()));
        let refused = Some(Refusal { rule });
        let pair = r.from.vni.is_some() && r.to.vni.is_some();
        let outer = match (pair, r.to.vni, remote, local) {
            (true, Some(other), IpAddr::V4(b), IpAddr::V4(_)) => {
                OuterKey::V4([u64::from(other) << 40 | u64::from(proto) << 32, u64::from(b.to_bits()) << 32])
            }
            (true, Some(other), ..) => OuterKey::V6([u64::from(other) << 40 | u64::from(proto) << 32, 0, 0, 0, 0]),
            _ => inner.untranslated(),
        };
        self.put(Record { refused, pair, inner, outer, from_outside, start: self.start_ms(r.now), end: None });
    }

    /// A session ended.
    pub fn ended(&self, e: &Ended) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let s = &e.session;
        let (counts, time) = (Some((s.counts.packets, s.counts.bytes)), self.wall_ms(monotonic_ns()));
        let end = Some(End { time, reason: e.reason, state: s.state.name(), counts });
        let (from_outside, start) = (s.from_outside, self.start_ms(s.start));
        let (refused, pair) = (None, s.owner == Owner::Filter);
        self.put(Record { refused, pair, inner: s.inner, outer: s.outer, from_outside, start, end });
    }
}

impl SessionLog {
    /// A connection of a state table ended, now or within the last tenth of a second. Neither its start nor what it carried is known.
    pub fn connection_ended(&self, e: &conntrack_compact::Ended) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let now = monotonic_ns();
        let s = crate::states::as_session(&e.key, &e.connection, now);
        let reason = match e.why {
            conntrack_compact::Why::Timeout => EndReason::Timeout,
            conntrack_compact::Why::Reset | conntrack_compact::Why::Closed => EndReason::Closed,
            conntrack_compact::Why::Revoked => EndReason::Removed,
        };
        let end = Some(End { time: self.wall_ms(now), reason, state: s.state.name(), counts: None });
        let (refused, pair, from_outside, start) = (None, true, s.from_outside, 0);
        self.put(Record { refused, pair, inner: s.inner, outer: s.outer, from_outside, start, end });
    }
}

fn write(target: &model::SessionLog, records: &Receiver<Record>, health: &Health, names: &Names) {
    match target {
        model::SessionLog::Off => {}
        model::SessionLog::File(path) => write_file(PathBuf::from(path), records, health, names),
        model::SessionLog::Ipfix(to) => {
            let mut exporter = Exporter::new(*to);
            while let Some(list) = next(records) {
                match exporter.send(&list, crate::audit::now_ms()) {
                    Ok(()) => health.goes_well(),
                    Err(e) => health.fails(&list, format!("the IPFIX collector {to} cannot be told of sessions: {e}")),
                }
            }
        }
    }
}

/// What is there after at most [`FLUSH`]; `None` at the end.
fn next(records: &Receiver<Record>) -> Option<Vec<Record>> {
    let first = match records.recv_timeout(FLUSH) {
        Ok(record) => record,
        Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
        Err(RecvTimeoutError::Disconnected) => return None,
    };
    Some(std::iter::once(first).chain(records.try_iter().take(4096)).collect())
}

fn write_file(path: PathBuf, records: &Receiver<Record>, health: &Health, names: &Names) {
    let open = || std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let mut file: Option<std::fs::File> = None;
    let mut text = Vec::new();
    while let Some(list) = next(records) {
        let there = std::fs::metadata(&path).map(|m| (m.dev(), m.ino())).ok();
        let ours = file.as_ref().and_then(|f| f.metadata().ok()).map(|m| (m.dev(), m.ino()));
        text.clear();
        let known = names.read();
        for record in &list {
            // Writing to memory cannot fail.
            let _ = writeln!(text, "{}", record.to_json(known.get(&record.inner.vni()).map(|name| &**name)));
        }
        drop(known);
        let opened = match file.take() {
            Some(f) if there == ours => Ok(f),
            _ => open(),
        };
        match opened.and_then(|mut f| f.write_all(&text).map(|()| f)) {
            Ok(f) => {
                file = Some(f);
                health.goes_well();
            }
            Err(e) => health.fails(&list, format!("the session log {} cannot be written: {e}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_says_so_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/log");
        let log = SessionLog::default();
        let wait = |wanted: bool| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while log.trouble().is_some() != wanted && std::time::Instant::now() < end {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            log.trouble()
        };
        log.set(Some(&model::SessionLog::File(path.display().to_string())));
        let trouble = wait(true).unwrap();
        assert!(trouble.contains("later/log cannot be written"), "{trouble}");
        std::fs::create_dir(dir.path().join("later")).unwrap();
        assert_eq!(wait(false), None);
        assert!(path.exists());
        log.set(None);
    }
}

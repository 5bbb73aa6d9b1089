// SPDX-License-Identifier: Apache-2.0
//! Captured and sampled packets on their way from the engines to whoever watches.
//!
//! The XDP program puts dropped, punted and sampled packets into a BPF ring, the software workers hand theirs over
//! directly; both end in the [`Hub`], which gives each subscriber what its filter asks for. A subscriber that does not
//! keep up loses events, counted, and never slows an engine down. While nobody subscribes, the option bits that make the engines
//! copy packets are off: the hub tells [`Hub::wanted`] and the service writes the bits.

use abi::{Event, EVENT_DROP, EVENT_PUNT, EVENT_SAMPLE};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events that wait for one subscriber at most.
const QUEUE: usize = 8192;
/// Bytes of an encoded event before its packet bytes.
const HEADER: usize = 32;

/// What a subscriber wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventFilter {
    /// Dropped packets.
    #[serde(default)]
    pub drops: bool,
    /// Punted packets.
    #[serde(default)]
    pub punts: bool,
    /// One packet in 2^n of all.
    #[serde(default)]
    pub sample: Option<u8>,
    /// Only these reason names, if any are given.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Only this VNI.
    #[serde(default)]
    pub vni: Option<u32>,
}

impl EventFilter {
    /// Why nothing, or not all that is meant, could pass.
    pub fn check(&self) -> Result<(), String> {
        for name in &self.reasons {
            let (drop, punt) = (abi::DropReason::from_name(name).is_some(), abi::PuntReason::from_name(name).is_some());
            if !drop && !punt {
                return Err(format!("`{name}` is no reason; docs/reference/reasons.md lists them all"));
            }
            if !(drop && self.drops || punt && self.punts) {
                let (is, other) = if drop { ("drops", "--drops") } else { ("punts", "--punts") };
                return Err(format!(
                    "`{name}` is a reason of {is}, of which none are asked for; give {other} too, or another reason"
                ));
            }
        }
        if self.sample.is_some() && !self.reasons.is_empty() {
            return Err("sampled packets have no reason: leave out --sample or --reason".into());
        }
        match self.vni.filter(|vni| *vni >= 1 << 24) {
            Some(vni) => Err(format!("{vni} is no VNI: these are numbers below 16777216")),
            None => Ok(()),
        }
    }

    /// Whether an event passes.
    pub fn accepts(&self, event: &Event) -> bool {
        let kind = match event.kind {
            EVENT_DROP => self.drops,
            EVENT_PUNT => self.punts,
            EVENT_SAMPLE => self.sample.is_some(),
            _ => false,
        };
        kind && self.vni.is_none_or(|v| v == event.vni)
            && (self.reasons.is_empty() || self.reasons.iter().any(|r| r == reason_name(event)))
    }
}

/// Name of the drop or punt reason of an event, or "sample".
pub fn reason_name(event: &Event) -> &'static str {
    match event.kind {
        EVENT_DROP => abi::DropReason::from_number(event.reason).map_or("unknown", |r| r.name()),
        EVENT_PUNT => abi::PuntReason::from_number(event.reason).map_or("unknown", |r| r.name()),
        _ => "sample",
    }
}

/// Name of the stage in which an event's reason arises.
pub fn stage_name(event: &Event) -> &'static str {
    match event.kind {
        EVENT_DROP => abi::DropReason::from_number(event.reason).map_or("unknown", |r| r.stage().name()),
        EVENT_PUNT => abi::PuntReason::from_number(event.reason).map_or("unknown", |r| r.stage().name()),
        _ => "parse",
    }
}

/// Writes an event for the capture stream of the API: fixed header, then the captured bytes.
pub fn encode(event: &Event, out: &mut Vec<u8>) {
    let captured = event.captured.min(event.data.len() as u16);
    out.extend_from_slice(&event.time.to_le_bytes());
    out.extend_from_slice(&event.ifindex.to_le_bytes());
    out.extend_from_slice(&event.vni.to_le_bytes());
    out.extend_from_slice(&event.length.to_le_bytes());
    out.extend_from_slice(&captured.to_le_bytes());
    out.extend_from_slice(&[event.kind, event.reason]);
    out.extend_from_slice(&0u64.to_le_bytes());
    out.extend_from_slice(&event.data[..captured as usize]);
}

/// Takes one event off the front of a capture stream; `None` if it is not complete yet.
pub fn decode(buffer: &[u8]) -> Option<(Event, usize)> {
    let header = buffer.first_chunk::<HEADER>()?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let captured = u16::from_le_bytes([header[20], header[21]]).min(abi::EVENT_BYTES as u16);
    let bytes = buffer.get(HEADER..HEADER + captured as usize)?;
    let mut event = Event {
        time: u64::from(word(0)) | u64::from(word(4)) << 32,
        ifindex: word(8),
        vni: word(12),
        length: word(16),
        captured,
        kind: header[22],
        reason: header[23],
        reserved: 0,
        data: [0; abi::EVENT_BYTES as usize],
    };
    event.data[..captured as usize].copy_from_slice(bytes);
    Some((event, HEADER + captured as usize))
}

struct Subscriber {
    id: u64,
    filter: EventFilter,
    queue: mpsc::Sender<Box<Event>>,
    lost: Arc<AtomicU64>,
}

/// What the engines should copy for the present subscribers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Copy dropped packets.
    pub drops: bool,
    /// Copy punted packets.
    pub punts: bool,
    /// Sampling exponent, 0 for none.
    pub sample: u8,
}

impl Wanted {
    /// The bits of the root's option word.
    pub fn option_bits(self) -> u64 {
        let mut bits = u64::from(self.sample) << abi::OPT_SAMPLE_SHIFT;
        if self.drops {
            bits |= abi::OPT_CAPTURE_DROPS;
        }
        if self.punts {
            bits |= abi::OPT_CAPTURE_PUNTS;
        }
        bits
    }

    /// The option bits that belong to capturing.
    pub const MASK: u64 = abi::OPT_CAPTURE_DROPS | abi::OPT_CAPTURE_PUNTS | 0xff << abi::OPT_SAMPLE_SHIFT;
}

/// Distributes events.
#[derive(Default)]
pub struct Hub {
    subscribers: Mutex<Vec<Subscriber>>,
    next: AtomicU64,
    /// Who follows flows.
    pub live: crate::live::Live,
    /// Events taken in.
    pub seen: AtomicU64,
    /// Events lost because a subscriber did not keep up.
    pub lost: AtomicU64,
}

/// The receiving side of a subscription.
pub struct Subscription {
    /// Number for [`Hub::unsubscribe`].
    pub id: u64,
    /// The events.
    pub events: mpsc::Receiver<Box<Event>>,
    /// Events lost because this subscriber did not keep up.
    pub lost: Arc<AtomicU64>,
}

impl Hub {
    /// Adds a subscriber.
    pub fn subscribe(&self, filter: EventFilter) -> Subscription {
        let (queue, events) = mpsc::channel(QUEUE);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let lost = Arc::new(AtomicU64::new(0));
        let subscriber = Subscriber { id, filter, queue, lost: lost.clone() };
        self.subscribers.lock().push(subscriber);
        Subscription { id, events, lost }
    }

    /// Removes a subscriber.
    pub fn unsubscribe(&self, id: u64) {
        self.subscribers.lock().retain(|s| s.id != id);
    }

    /// What the engines should copy now.
    pub fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        for s in self.subscribers.lock().iter() {
            wanted.drops |= s.filter.drops;
            wanted.punts |= s.filter.punts;
            if let Some(n) = s.filter.sample.map(|n| n.max(1)) {
                wanted.sample = if wanted.sample == 0 { n } else { wanted.sample.min(n) };
            }
        }
        wanted
    }

    /// Hands an event to all who want it.
    pub fn publish(&self, event: &Event) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        for s in self.subscribers.lock().iter().filter(|s| s.filter.accepts(event)) {
            if s.queue.try_send(Box::new(*event)).is_err() {
                s.lost.fetch_add(1, Ordering::Relaxed);
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Vni;

    fn event(kind: u8, reason: u8, vni: Vni) -> Event {
        let mut e = Event {
            time: 0x1_2345_6789,
            ifindex: 3,
            vni: vni.0,
            length: 1500,
            captured: 4,
            kind,
            reason,
            reserved: 0,
            data: [0; 256],
        };
        e.data[..4].copy_from_slice(&[1, 2, 3, 4]);
        e
    }

    #[test]
    fn an_event_survives_its_encoding_and_a_cut_one_is_not_taken() {
        let mut bytes = Vec::new();
        encode(&event(EVENT_DROP, 37, Vni(100)), &mut bytes);
        for n in 0..bytes.len() {
            assert!(decode(&bytes[..n]).is_none());
        }
        let (back, used) = decode(&bytes).unwrap();
        assert_eq!(used, bytes.len());
        assert_eq!((back.time, back.vni, back.reason, &back.data[..4]), (0x1_2345_6789, 100, 37, &[1u8, 2, 3, 4][..]));
    }

    #[test]
    fn subscribers_get_what_they_asked_for_and_a_slow_one_loses_counted() {
        let hub = Hub::default();
        let mut drops =
            hub.subscribe(EventFilter { drops: true, reasons: vec!["vm_unknown".into()], ..Default::default() });
        let mut punts = hub.subscribe(EventFilter { punts: true, vni: Some(7), ..Default::default() });
        assert_eq!(hub.wanted(), Wanted { drops: true, punts: true, sample: 0 });
        hub.publish(&event(EVENT_DROP, abi::DropReason::VmUnknown as u8, Vni(5)));
        hub.publish(&event(EVENT_DROP, abi::DropReason::TooBig as u8, Vni(5)));
        hub.publish(&event(EVENT_PUNT, 1, Vni(7)));
        hub.publish(&event(EVENT_PUNT, 1, Vni(8)));
        assert_eq!(drops.events.try_recv().unwrap().vni, 5);
        assert!(drops.events.try_recv().is_err());
        assert_eq!(punts.events.try_recv().unwrap().vni, 7);
        assert!(punts.events.try_recv().is_err());
        for _ in 0..QUEUE + 3 {
            hub.publish(&event(EVENT_PUNT, 1, Vni(7)));
        }
        assert_eq!(punts.lost.load(Ordering::Relaxed), 3);
        hub.unsubscribe(drops.id);
        hub.unsubscribe(punts.id);
        assert_eq!(hub.wanted(), Wanted::default());
    }
}

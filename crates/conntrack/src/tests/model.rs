// SPDX-License-Identifier: Apache-2.0
//! Random events against a naive twin: a map from keys to sessions, searched as a whole whenever anything is asked. What TCP segments
//! mean the twin knows from a box of its own (`middlebox`), which shares nothing with the tracker's.

use super::middlebox::{Middlebox, Told};
use super::*;
use crate::tcp::Conn;
use rand::RngExt;
use std::collections::BTreeMap;
use wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// A session as the twin has it.
#[derive(Clone, Debug)]
struct Twin {
    at: SessionRef,
    new: NewSession,
    state: State,
    conn: Option<Middlebox>,
    start: u32,
    last: u32,
    packets: u64,
    bytes: u64,
    epoch: u16,
    from_outside: bool,
}

/// All of them, and an order that a seed repeats: by a hash of the key.
#[derive(Default)]
struct Twins {
    map: HashMap<InnerKey, Twin>,
    order: BTreeMap<u64, InnerKey>,
}

impl Twins {
    fn get(&self, key: &InnerKey) -> Option<&Twin> {
        self.map.get(key)
    }

    fn insert(&mut self, key: InnerKey, twin: Twin) {
        if self.map.insert(key, twin).is_none() {
            assert_eq!(self.order.insert(key.hash(1), key), None, "two keys of one hash");
        }
    }

    fn remove(&mut self, key: &InnerKey) -> Option<Twin> {
        self.order.remove(&key.hash(1));
        self.map.remove(key)
    }

    fn values(&self) -> impl Iterator<Item = &Twin> {
        self.map.values()
    }

    fn len(&self) -> usize {
        self.map.len()
    }

    /// The first one from this hash on, round the corner.
    fn from(&self, hash: u64) -> Option<&Twin> {
        let (_, key) = self.order.range(hash..).next().or_else(|| self.order.iter().next())?;
        self.map.get(key)
    }
}

struct World {
    t: Tracker,
    memory: Arc<dyn SessionMemory>,
    options: Options,
    twins: Twins,
    limits: HashMap<Vni, TenantLimits>,
    now: u64,
    restarted: u64,
    events: u64,
    seen: HashMap<String, u64>,
}

const TENANTS: u32 = 4;
/// This one has timeouts of its own, all but one.
const OWN: u32 = 3;
const OWN_TIMEOUTS: OwnTimeouts = [600, 100, 0, 400, 15, 4, 150, 15, 60, 25];

fn random_new(rng: &mut ChaCha8Rng) -> NewSession {
    let vni = rng.random_range(1..=TENANTS);
    let proto = [6, 6, 6, 17, 17, 1][rng.random_range(0..6)];
    let direction = if rng.random_bool(0.8) { Direction::Out } else { Direction::In };
    let port = if proto == 1 { (rng.random_range(0..9), 0) } else { (rng.random_range(0..40), rng.random_range(0..3)) };
    let view = match proto {
        6 => L4View::Tcp(Segment {
            flags: [SYN, SYN, SYN, SYN, ACK, SYN | ACK, FIN | ACK, RST][rng.random_range(0..8)],
            seq: rng.random(),
            ack: rng.random(),
            window: rng.random(),
            len: rng.random_range(0..100),
            scale: rng.random::<bool>().then(|| rng.random_range(0..15)),
        }),
        1 => L4View::Echo { request: rng.random_bool(0.8) },
        _ => L4View::Other,
    };
    let (inner, outer);
    if rng.random_bool(0.25) {
        let vm = u128::from(vni) << 96 | u128::from(rng.random_range(0..5u32));
        inner = InnerKey::v6(Vni(vni), proto, vm, port.0, rng.random_range(0..3u32).into(), port.1);
        outer = inner.untranslated();
    } else {
        let remote = rng.random_range(0..3);
        inner = InnerKey::v4(Vni(vni), proto, rng.random_range(0..5), port.0, remote, port.1);
        outer = OuterKey::v4(proto, rng.random_range(0..2), rng.random_range(0..400), remote, port.1);
    }
    NewSession {
        inner,
        outer,
        owner: [Owner::Snat, Owner::Elastic, Owner::Forward, Owner::None][rng.random_range(0..4)],
        direction,
        view,
        bytes: rng.random_range(20..1500),
        epoch: rng.random(),
        pick_up: vni == 2,
    }
}

impl World {
    fn new(rng: &mut ChaCha8Rng) -> World {
        let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().unwrap());
        let options = Options {
            sessions: 900,
            initial: 100,
            salt: rng.random(),
            tenant: TenantLimits { sessions: 300, vm_sessions: 90, half_open: 150 },
            ..Options::default()
        };
        let t = Tracker::new(memory.clone(), options, S).unwrap();
        t.set_own_timeouts(Vni(OWN), &OWN_TIMEOUTS);
        World {
            t,
            memory,
            options,
            twins: Twins::default(),
            limits: HashMap::new(),
            now: S,
            restarted: 0,
            events: 0,
            seen: HashMap::new(),
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_insert(0) += 1;
    }

    fn limits(&self, vni: Vni) -> TenantLimits {
        self.limits.get(&vni).copied().unwrap_or(self.options.tenant)
    }

    fn count(&self, which: impl Fn(&Twin) -> bool) -> u32 {
        self.twins.values().filter(|t| which(t)).count() as u32
    }

    fn lines(&self) -> u32 {
        self.twins.values().map(|t| 1 + u32::from(t.new.inner.is_v6())).sum()
    }

    fn pressure(&self, vni: Vni) -> bool {
        self.lines() > self.options.sessions * 9 / 10
            || self.count(|t| t.new.inner.vni() == vni) * 5 > self.limits(vni).sessions * 4
    }

    /// How long a twin may live after `last`, in whole seconds; the same table as the essay's.
    fn timeout(&self, twin: &Twin, pressure: bool) -> u64 {
        let icmp = twin.new.inner.proto() == 1;
        let own = twin.new.inner.vni() == Vni(OWN);
        match twin.state {
            State::SynSent | State::SynBoth | State::SynReceived | State::PickedUp if own && !pressure => 100,
            State::Established if own && !twin.conn.unwrap().doubt => 600,
            State::Established | State::FinOut | State::FinIn | State::FinBoth | State::TimeWait if own => {
                [400, 15][usize::from(pressure)]
            }
            State::Reset if own => 4,
            State::OneSided | State::OneWay | State::Paired if own && icmp => 25,
            State::OneSided if own => 15,
            State::OneWay if own => 60,
            State::Paired if own => 150,
            State::SynSent | State::SynBoth | State::SynReceived | State::PickedUp if pressure => 20,
            State::SynSent | State::SynBoth | State::SynReceived | State::PickedUp => 240,
            State::Established if !twin.conn.unwrap().doubt => 7440,
            State::Established | State::FinOut | State::FinIn | State::FinBoth | State::TimeWait if pressure => 30,
            State::Established | State::FinOut | State::FinIn | State::FinBoth | State::TimeWait => 240,
            State::Reset => 10,
            _ if icmp => 60,
            State::OneSided => 30,
            State::OneWay => 120,
            State::Paired => 300,
            State::None => unreachable!(),
        }
    }

    /// An end that the tracker tells of must be one that the twin knows of and finds right. It removes the twin.
    fn ended(&mut self, e: &Ended, at_create: Option<&NewSession>) {
        let twin = self.twins.remove(&e.session.inner).unwrap_or_else(|| panic!("unknown: {e:?}"));
        assert_eq!(e.session.outer, twin.new.outer);
        assert_eq!(e.session.state, twin.state);
        assert_eq!(e.session.from_outside, twin.from_outside);
        assert_eq!((e.session.counts.packets, e.session.counts.bytes), (twin.packets, twin.bytes), "{e:?} {twin:?}");
        assert_eq!(coarse(e.session.start), twin.start);
        let vni = twin.new.inner.vni();
        match e.reason {
            EndReason::Timeout | EndReason::Closed => {
                assert_eq!(e.reason == EndReason::Closed, matches!(twin.state, State::TimeWait | State::Reset));
                self.twins.insert(e.session.inner, twin.clone());
                let pressure = self.pressure(vni);
                self.twins.remove(&e.session.inner);
                let due = u64::from(twin.last) * (1 << SESSION_TIME_SHIFT) + self.timeout(&twin, pressure) * S;
                assert!(due <= self.now + S / 10, "too early at {}: {twin:?}", self.now / S);
            }
            EndReason::Evicted => {
                let new = at_create.expect("evicted by a new session");
                assert!(twin.state.half_open(), "evicted: {twin:?}");
                assert_eq!(new.inner.vni(), vni);
                let vm_full = self.count(|t| t.new.inner.vni() == vni && t.new.inner.vm() == new.inner.vm()) + 1
                    >= self.limits(vni).vm_sessions;
                let older = |t: &Twin| {
                    t.new.inner.vni() == vni
                        && t.state.half_open()
                        && t.start < twin.start
                        && (!vm_full || t.new.inner.vm() == twin.new.inner.vm())
                };
                assert_eq!(self.count(older), 0, "not the oldest: {twin:?}");
            }
            EndReason::Removed | EndReason::Untranslated => {}
            EndReason::Reopened => {
                // The record goes on.
                assert!(!e.released);
                self.twins.insert(e.session.inner, twin);
            }
        }
        assert_eq!(e.released, e.reason != EndReason::Reopened);
        self.note(format!("ended {:?}", e.reason));
    }

    fn create(&mut self, rng: &mut ChaCha8Rng) {
        let new = random_new(rng);
        let mut ended = Vec::new();
        let result = self.t.create(&new, self.now, &mut |e| ended.push(*e));
        let vni = new.inner.vni();
        let begins = match &new.view {
            L4View::Tcp(s) => s.flags == SYN || (s.flags == ACK && new.pick_up),
            L4View::Echo { request } => *request,
            L4View::Other => true,
        };
        ended.iter().for_each(|e| self.ended(e, Some(&new)));
        let have = self.twins.get(&new.inner).map(|t| t.at);
        let taken = self.twins.values().any(|t| t.new.outer == new.outer);
        let half_open = self.count(|t| t.new.inner.vni() == vni && t.state.half_open());
        self.note(format!(
            "create {:?}",
            result.map(|_| "made").map_err(|e| match e {
                Refusal::Exists(_) => "exists".to_string(),
                other => format!("{other:?}"),
            })
        ));
        let evictions = ended.len();
        match result {
            Ok(at) => {
                assert!(begins && have.is_none() && !taken, "{new:?}");
                let conn = match &new.view {
                    L4View::Tcp(s) if s.flags == SYN => Some(Middlebox::begin(new.direction, s)),
                    L4View::Tcp(s) => Some(Middlebox::pick_up(new.direction, s)),
                    _ => None,
                };
                let state = conn.map_or(State::OneSided, |c| c.state);
                let now = coarse(self.now);
                let twin = Twin {
                    at,
                    new,
                    state,
                    conn,
                    start: now,
                    last: now,
                    packets: 1,
                    bytes: new.bytes.into(),
                    epoch: new.epoch,
                    from_outside: new.direction == Direction::In,
                };
                self.twins.insert(new.inner, twin);
                let limits = self.limits(vni);
                assert!(self.count(|t| t.new.inner.vni() == vni) <= limits.sessions);
                assert!(half_open < limits.half_open);
                assert!(self.lines() <= self.options.sessions);
                let vm = new.inner.vm();
                assert!(self.count(|t| t.new.inner.vni() == vni && t.new.inner.vm() == vm) <= limits.vm_sessions);
            }
            Err(Refusal::Exists(at)) => assert_eq!(have, Some(at)),
            Err(Refusal::OuterTaken) => assert!(taken && have.is_none()),
            // Two evictions at most, which may have been for other limits.
            Err(Refusal::Drop(_)) if evictions == 2 => {}
            Err(Refusal::Drop(reason)) => {
                let limits = self.limits(vni);
                let vm = new.inner.vm();
                let of_vm = |t: &Twin| t.new.inner.vni() == vni && t.new.inner.vm() == vm;
                match reason {
                    DropReason::SessionStray => assert!(!begins && have.is_none()),
                    // Where a lowered limit is exceeded by far, nobody is evicted for nothing.
                    DropReason::SessionQuotaTenant => {
                        let n = self.count(|t| t.new.inner.vni() == vni);
                        assert!(
                            n >= limits.sessions && (half_open == 0 || n > limits.sessions + 1 || limits.sessions == 0)
                        );
                    }
                    DropReason::SessionQuotaVm => {
                        let (n, limit) = (self.count(of_vm), limits.vm_sessions);
                        let of_vm_half = self.count(|t| of_vm(t) && t.state.half_open());
                        assert!(n >= limit && (of_vm_half == 0 || n > limit + 1));
                    }
                    DropReason::SessionQuotaHalfOpen => {
                        assert!(limits.half_open == 0 || half_open > limits.half_open + 1)
                    }
                    DropReason::SessionTableFull => assert!(self.lines() + 2 > self.options.sessions),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn packet(&mut self, rng: &mut ChaCha8Rng) {
        let Some(twin) = self.pick(rng) else { return };
        let direction = if rng.random() { Direction::Out } else { Direction::In };
        let view = match twin.conn {
            Some(conn) => {
                let (s, p) = (direction as usize, direction.reverse() as usize);
                // Mostly what the endpoints would send.
                let (flags, len) = [
                    (SYN, 0),
                    (SYN | ACK, 0),
                    (ACK, 0),
                    (ACK, 100),
                    (ACK | PSH, 10),
                    (FIN | ACK, 0),
                    (RST, 0),
                    (rng.random(), 0),
                ][rng.random_range(0..8)];
                let (octets, acks) = conn.edges(s);
                let mut near =
                    |of: [u32; 2]| of[rng.random_range(0..2)].wrapping_add(rng.random_range(0..3)).wrapping_sub(1);
                let (octet, ack) = (near(octets), near(acks));
                let noise = if rng.random_bool(0.1) { rng.random_range(0..100_000) } else { 0 };
                L4View::Tcp(Segment {
                    flags,
                    // Or right beside where it stops to fit.
                    seq: if rng.random_bool(0.08) { octet } else { conn.sent(s).wrapping_add(noise) },
                    ack: if rng.random_bool(0.08) { ack } else { conn.sent(p).wrapping_sub(noise / 2) },
                    window: rng.random(),
                    len,
                    scale: rng.random::<bool>().then(|| rng.random_range(0..15)),
                })
            }
            None if twin.new.inner.proto() == 1 => L4View::Echo { request: rng.random() },
            None => L4View::Other,
        };
        let bytes = rng.random_range(20..1500u32);
        let sessions = self.t.sessions();
        let guard = sessions.enter();
        let fast = rng.random::<bool>() && guard.record(twin.at).fast(direction, &view, bytes, self.now);
        let mut after = twin.clone();
        let mut reopened = None;
        let coarse_now = coarse(self.now);
        if fast {
            self.note("fast");
            assert!(twin.state.fast());
            after.packets += 1;
            after.bytes += u64::from(bytes);
            match (&view, &mut after.conn) {
                (L4View::Tcp(seg), Some(conn)) => {
                    assert!(seg.flags & (SYN | FIN | RST) == 0 && seg.flags & ACK != 0 && !conn.doubt);
                    if conn.fits(direction, seg) {
                        conn.segment(direction, seg);
                        after.last = coarse_now;
                    }
                }
                _ => {
                    let from_init = (direction == Direction::In) == twin.from_outside;
                    assert!(twin.state == State::Paired || from_init);
                    after.last = coarse_now;
                }
            }
        } else {
            let judged = self.t.judge(twin.at, direction, &view, bytes, self.now, &mut |e| reopened = Some(*e));
            assert_eq!(judged.before, twin.state);
            let mut told = Told { goes_on: true, reopened: false, alive: true };
            match (&view, &mut after.conn) {
                (L4View::Tcp(seg), Some(conn)) => {
                    told = conn.segment(direction, seg);
                    after.state = conn.state;
                    after.from_outside = conn.opener == Direction::In;
                }
                _ => {
                    let from_init = (direction == Direction::In) == twin.from_outside;
                    after.state = match twin.state {
                        State::OneSided | State::OneWay if !from_init => State::Paired,
                        State::OneSided if twin.new.inner.proto() != 1 && twin.packets + 1 >= 8 => State::OneWay,
                        other => other,
                    };
                }
            }
            assert_eq!(judged.after, after.state, "{direction:?} {view:?} of {twin:?}");
            assert_eq!(judged.verdict == Verdict::Forward, told.goes_on, "{direction:?} {view:?} of {twin:?}");
            if told.goes_on {
                after.packets += 1;
                after.bytes += u64::from(bytes);
            }
            if told.alive {
                after.last = coarse_now;
            }
            if told.reopened {
                (after.packets, after.bytes, after.start) = (1, bytes.into(), coarse_now);
            }
            assert_eq!(reopened.is_some(), told.reopened, "{direction:?} {view:?} of {twin:?}");
            self.note(format!("{} > {}", twin.state.name(), after.state.name()));
        }
        drop(guard);
        if let Some(e) = reopened {
            self.ended(&e, None);
        }
        self.twins.insert(twin.new.inner, after.clone());
        self.compare(&after);
    }

    fn compare(&self, twin: &Twin) {
        let info = self.t.info(twin.at, self.now).expect("it lives");
        assert_eq!((info.inner, info.outer, info.owner), (twin.new.inner, twin.new.outer, twin.new.owner));
        assert_eq!((info.state, info.from_outside, info.epoch), (twin.state, twin.from_outside, twin.epoch));
        assert_eq!((info.counts.packets, info.counts.bytes), (twin.packets, twin.bytes));
        assert_eq!((coarse(info.start), coarse(info.last)), (twin.start, twin.last));
        if let Some(conn) = twin.conn {
            let sessions = self.t.sessions();
            let guard = sessions.enter();
            let have = Conn::of(&guard.record(twin.at));
            assert_eq!((have.end, have.ack), ([0, 1].map(|s| conn.sent(s)), [0, 1].map(|s| conn.acked(s))), "{twin:?}");
            for side in [Direction::Out, Direction::In] {
                let bytes = conn.window(side as usize);
                assert!(
                    bytes.is_none_or(|bytes| bytes == i64::from(have.bytes_of(side))),
                    "{side:?} of {twin:?}, {have:?}"
                );
            }
            assert_eq!((have.init, have.loose, have.doubt), (conn.opener, conn.loose, conn.doubt), "{twin:?}");
        }
    }

    fn pick(&self, rng: &mut ChaCha8Rng) -> Option<Twin> {
        self.twins.from(rng.random()).cloned()
    }

    fn look_up(&self, rng: &mut ChaCha8Rng) {
        let new = random_new(rng);
        let sessions = self.t.sessions();
        let guard = sessions.enter();
        let want = self.twins.get(&new.inner).map(|t| t.at);
        assert_eq!(guard.find_inner(&new.inner), want);
        let want = self.twins.values().find(|t| t.new.outer == new.outer).map(|t| t.at);
        assert_eq!(guard.find_outer(&new.outer), want);
        assert_eq!(self.t.find_outer(&new.outer), want);
    }

    fn pass_time(&mut self, rng: &mut ChaCha8Rng) {
        self.now += match rng.random_range(0..1000) {
            0..500 => S / 50,
            500..900 => S / 3,
            900..960 => 2 * S,
            960..985 => 11 * S,
            985..995 => 40 * S,
            995..999 => 300 * S,
            _ => 8000 * S,
        };
        // Ends change the pressure, which only falls by them: the twin takes them in the same order.
        let mut ended = Vec::new();
        while self.t.expire(self.now, rng.random_range(1..2000), &mut |e| ended.push(*e)).more {}
        ended.iter().for_each(|e| self.ended(e, None));
        for twin in self.twins.values() {
            // Pressure, which comes and goes, shortens this; `limits` has a test of its own for that.
            let due = u64::from(twin.last) * (1 << SESSION_TIME_SHIFT) + self.timeout(twin, false) * S;
            // A restarted tracker learns of a tenant's own timeouts when the sessions are in the wheel already, and looks at each within a turn;
            // as long after the last of several restarts.
            let own = twin.new.inner.vni() == Vni(OWN);
            let due = if own { due.max(self.restarted + (wheel::PLACES << wheel::TICK_SHIFT)) } else { due };
            assert!(due + 4 * S > self.now, "{} s late: {twin:?}", (self.now - due) / S);
        }
    }

    fn restart(&mut self) {
        let salt = self.options.salt;
        let (t, found) =
            Tracker::attach(self.memory.clone(), Options { salt: !salt, ..self.options }, self.now).unwrap();
        assert_eq!(found.sessions, self.twins.len() as u64);
        assert_eq!((found.completed, found.dangling, found.refused), (0, 0, 0));
        self.t = t;
        self.t.set_own_timeouts(Vni(OWN), &OWN_TIMEOUTS);
        self.restarted = self.now;
        for (vni, limits) in &self.limits {
            self.t.set_limits(Vni(vni.0), Some(*limits));
        }
        self.note("restart");
    }

    fn event(&mut self, rng: &mut ChaCha8Rng) {
        self.events += 1;
        match rng.random_range(0..1000) {
            0..250 => self.create(rng),
            250..900 => self.packet(rng),
            900..960 => self.look_up(rng),
            960..970 => {
                let Some(twin) = self.pick(rng) else { return };
                let mut ended = None;
                assert!(self.t.remove(twin.at, self.now, &mut |e| ended = Some(*e)));
                self.ended(&ended.unwrap(), None);
                assert_eq!(self.t.info(twin.at, self.now).map(|i| i.inner), None);
            }
            970..975 => {
                let Some(mut twin) = self.pick(rng) else { return };
                twin.epoch = rng.random();
                assert!(self.t.stamp(twin.at, twin.epoch));
                self.twins.insert(twin.new.inner, twin);
            }
            975..977 => {
                let vni = rng.random_range(1..=TENANTS);
                let limits = TenantLimits {
                    sessions: rng.random_range(20..400),
                    vm_sessions: rng.random_range(5..100),
                    half_open: rng.random_range(0..200),
                };
                self.limits.insert(Vni(vni), limits);
                self.t.set_limits(Vni(vni), Some(limits));
            }
            977..999 => self.pass_time(rng),
            _ => {
                if rng.random_bool(0.1) {
                    self.restart();
                }
            }
        }
    }
}

/// So many events, and a look at everything after each so many.
fn agree(events: u64, every: u64) -> World {
    let (seed, mut rng) = seeded("model");
    let mut world = World::new(&mut rng);
    while world.events < events {
        world.event(&mut rng);
        if world.events.is_multiple_of(every) {
            check(&world.t, world.now);
            let twins: Vec<Twin> = world.twins.values().cloned().collect();
            twins.iter().for_each(|t| world.compare(t));
            assert_eq!(all(&world.t, world.now).len(), world.twins.len());
        }
    }
    println!("{events} events, seed {seed}: {} sessions at the end", world.twins.len());
    world
}

#[test]
fn random_events_agree_with_the_twin() {
    let world = agree(std::env::var("TUNNY_EVENTS").ok().and_then(|s| s.parse().ok()).unwrap_or(1_000_000), 5000);
    let mut seen: Vec<_> = world.seen.iter().collect();
    seen.sort();
    println!("{seen:?}");
    for what in ["ended Evicted", "ended Reopened", "ended Timeout", "ended Closed", "fast", "restart"] {
        assert!(world.seen.contains_key(what), "never: {what}");
    }
}

#[test]
fn a_few_random_events_agree_with_the_twin() {
    agree(8_000, 500);
}

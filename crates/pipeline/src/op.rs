// SPDX-License-Identifier: Apache-2.0
//! Straight-line programs over a key: what the interpreter did between two lookups, in a form that any key can be put through.
//!
//! The interpreter turns actions into [`Op`]s and runs those very ops, so a recorded program does to another key what the pipeline
//! would have done, as long as that key agrees on the bits that the steps depended on. Ops keep what they can symbolic: `move`
//! copies bits without looking at them, `dec_ttl` subtracts, `output` compares with the input port when it runs. Whatever an action
//! did look at was added to the step's mask when it was recorded.
//!
//! [`Need`] walks a program backwards: given the bits needed after it, it says which bits are needed before it. Bits that
//! the program writes drop out, bits that it moves turn into those they came from.
use crate::conntrack::CtCall;
use crate::field::{Field, Subfield};
use crate::key::{low64, Key, Mask, WORDS};
use crate::learn::Learn;
use std::sync::{Arc, OnceLock};

/// Where a packet is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A port; not if it is the one that the packet came in by.
    Port(u16),
    /// The beginning of the packet to a port, under the same condition.
    Truncated {
        /// The port.
        port: u16,
        /// At most so many bytes.
        max_len: u32,
    },
    /// The port that the packet came in by.
    InPort,
    /// All ports but the one that it came in by.
    All,
    /// The same, without ports that do not take part in flooding.
    Flood,
    /// Forwarding as an ordinary learning switch.
    Normal,
    /// A controller.
    Controller(Arc<ToController>),
}

/// What goes to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToController {
    /// At most so many bytes of the packet.
    pub max_len: u16,
    /// Why.
    pub reason: Reason,
    /// Which controller.
    pub id: u16,
    /// Bytes that come back with it.
    pub userdata: Vec<u8>,
    /// Processing may be resumed.
    pub pause: bool,
    /// Meter, if not the default one.
    pub meter: Option<u32>,
}

impl ToController {
    /// What `controller` alone says.
    pub fn plain(reason: Reason) -> ToController {
        ToController { max_len: u16::MAX, reason, id: 0, userdata: Vec::new(), pause: false, meter: None }
    }

    /// Whether it says no more than an output to the controller's port does: at most how many bytes.
    pub fn is_output(&self) -> bool {
        let ToController { max_len: _, reason, id, userdata, pause, meter } = self;
        *reason == Reason::Action && *id == 0 && userdata.is_empty() && !pause && meter.is_none()
    }
}

/// Why a packet goes to a controller, with the numbers of OpenFlow (`OFPR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// No flow matched.
    NoMatch,
    /// An action says so.
    Action,
    /// Its TTL ran out.
    InvalidTtl,
    /// The action set says so.
    ActionSet,
    /// A group says so.
    Group,
    /// A packet-out says so.
    PacketOut,
    /// The flow of a table that matches every packet at priority 0 says so.
    TableMiss,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes the bits of `mask` in a word.
    Set {
        /// Which word.
        word: u8,
        /// The new bits.
        value: u64,
        /// Which bits.
        mask: u64,
    },
    /// Copies bits.
    Move {
        /// From here.
        from: Subfield,
        /// To here; as many bits.
        to: Subfield,
    },
    /// Decrements the IP TTL, which is known to be above 1.
    DecTtl,
    /// Decrements the MPLS TTL, which is known to be above 1.
    DecMplsTtl,
    /// A new outer VLAN tag without an id.
    PushVlan(u16),
    /// Removes the outer VLAN tag.
    PopVlan,
    /// A tag that was set without a type gets the usual one.
    FixVlanType,
    /// A new outer MPLS label; the first one or a copy of the outer one.
    PushMpls {
        /// The Ethernet type.
        ethertype: u16,
        /// Whether it is the only one.
        first: bool,
    },
    /// Removes the outer MPLS label; the packet is of this Ethernet type now.
    PopMpls(u16),
    /// Pushes bits on the stack.
    Push(Subfield),
    /// Pops bits from the stack.
    Pop(Subfield),
    /// Keeps the key for [`Op::Restore`]: a clone or a group's bucket begins.
    Save,
    /// Takes the last kept key.
    Restore,
    /// Sends the packet as it is now.
    Output(Target),
    /// Sends it through the connection tracker, perhaps to come back as another traversal. What goes on here is not tracked any more.
    Ct(Arc<CtCall>),
    /// Forgets what the connection tracker said.
    CtClear,
    /// Installs a flow made from the packet.
    Learn(Arc<Learn>),
    /// Counts against a meter.
    Meter(u32),
}

impl Op {
    /// The ops that write a constant into some bits of a field.
    pub fn set(to: Subfield, value: u128, out: &mut Vec<Op>) {
        let mut bits = Mask::default();
        bits.add_bits(to.field, to.field_mask());
        let mut key = Key::default();
        to.write(&mut key, value);
        Op::set_words(&key, &bits, out);
    }

    /// The ops that write the bits of a field that `mask` names (right-aligned).
    pub fn set_masked(field: Field, value: u128, mask: u128, out: &mut Vec<Op>) {
        let mut bits = Mask::default();
        bits.add_bits(field, mask);
        let mut key = Key::default();
        key.set(field, value & mask);
        Op::set_words(&key, &bits, out);
    }

    fn set_words(key: &Key, bits: &Mask, out: &mut Vec<Op>) {
        for (n, (value, mask)) in key.0.iter().zip(&bits.0).enumerate() {
            if *mask != 0 {
                out.push(Op::Set { word: n as u8, value: value & mask, mask: *mask });
            }
        }
    }

    /// The bits whose values have a part in what this op does or sends. More than [`Need`] asks for: what is copied or sent must be there
    /// already when ops change places, though nothing depends on its value.
    pub fn reads(&self, mask: &mut Mask) {
        match self {
            Op::Set { .. } | Op::Pop(_) | Op::CtClear => {}
            Op::Move { from, .. } | Op::Push(from) => from.depends(mask),
            Op::DecTtl => mask.add(Field::NwTtl),
            Op::DecMplsTtl => mask.add(Field::MplsTtl),
            Op::PushVlan(_) | Op::PopVlan | Op::FixVlanType => mask.0[VLAN] = !0,
            Op::PushMpls { .. } | Op::PopMpls(_) => {
                [Field::EthType, Field::MplsLse2, Field::NwTos, Field::NwTtl].iter().for_each(|f| mask.add(*f));
                mask.0[MPLS] = !0;
            }
            Op::Save | Op::Restore | Op::Output(_) | Op::Ct(_) | Op::Learn(_) | Op::Meter(_) => *mask = Mask::all(),
        }
    }

    /// The bits that this op writes.
    pub fn writes(&self, mask: &mut Mask) {
        match self {
            Op::Set { word, mask: m, .. } => mask.0[usize::from(*word)] |= m,
            Op::Move { to, .. } | Op::Pop(to) => to.depends(mask),
            Op::DecTtl => mask.add(Field::NwTtl),
            Op::DecMplsTtl => mask.add(Field::MplsTtl),
            Op::PushVlan(_) | Op::PopVlan => mask.0[VLAN] = !0,
            Op::FixVlanType => mask.add(Field::VlanTpid),
            Op::PushMpls { .. } | Op::PopMpls(_) => {
                mask.add(Field::EthType);
                mask.0[MPLS] = !0;
                mask.add(Field::MplsLse2);
            }
            Op::CtClear | Op::Ct(_) => CT_FIELDS.iter().for_each(|field| mask.add(*field)),
            _ => {}
        }
    }
}

const VLAN: usize = 28;
const MPLS: usize = 29;

/// Who gets what a program sends. `ct` may rewrite the packet (address translation) for what follows it.
pub trait Sink {
    /// The packet goes out.
    fn output(&mut self, target: &Target, key: &Key);
    /// The packet goes through the connection tracker.
    fn ct(&mut self, call: &Arc<CtCall>, key: &mut Key);
    /// The packet is no longer tracked.
    fn ct_clear(&mut self) {}
    /// A flow is learned.
    fn learn(&mut self, _learn: &Arc<Learn>, _key: &Key) {}
    /// The packet counts against a meter.
    fn meter(&mut self, _meter: u32) {}
}

/// A key going through a program: the key and what `push` and `clone` keep beside it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The key now.
    pub key: Key,
    pub(crate) stack: Vec<(u128, u8)>,
    saved: Vec<(Key, Vec<(u128, u8)>)>,
}

impl Machine {
    /// Begins with a key.
    pub fn new(key: Key) -> Machine {
        Machine { key, stack: Vec::new(), saved: Vec::new() }
    }

    /// Begins again with another key; keeps its memory.
    #[inline]
    pub fn reset(&mut self, key: &Key) {
        self.key = *key;
        self.stack.clear();
        self.saved.clear();
    }

    /// Runs ops.
    pub fn run(&mut self, ops: &[Op], sink: &mut impl Sink) {
        for op in ops {
            self.step(op, sink);
        }
    }

    /// Runs one op.
    #[inline]
    pub fn step(&mut self, op: &Op, sink: &mut impl Sink) {
        let key = &mut self.key;
        match op {
            Op::Set { word, value, mask } => {
                let word = &mut key.0[usize::from(*word)];
                *word = *word & !mask | value;
            }
            Op::Move { from, to } => {
                let value = from.read(key);
                to.write(key, value);
            }
            Op::DecTtl => count_down(key, Field::NwTtl),
            Op::DecMplsTtl => count_down(key, Field::MplsTtl),
            Op::PushVlan(tpid) => key.0[VLAN] = u64::from(*tpid) << 48 | 0x1000 << 32 | key.0[VLAN] >> 32,
            Op::PopVlan => pop_vlan(key),
            Op::FixVlanType => fix_vlan(key),
            Op::PushMpls { ethertype, first } => push_mpls(key, *ethertype, *first),
            Op::PopMpls(ethertype) => {
                let lse = (key.0[MPLS] << 32, key.get(Field::MplsLse2));
                key.0[MPLS] = lse.0 | lse.1 as u64;
                key.set(Field::MplsLse2, 0);
                key.set(Field::EthType, u128::from(*ethertype));
            }
            Op::Push(from) => self.stack.push((from.read(key), from.bits)),
            // The interpreter records no pop of an empty stack; damaged programs must not panic all the same.
            Op::Pop(to) => {
                let (value, _) = self.stack.pop().unwrap_or_default();
                to.write(key, value);
            }
            Op::Save => self.saved.push((*key, self.stack.clone())),
            Op::Restore => {
                if let Some((saved, stack)) = self.saved.pop() {
                    *key = saved;
                    self.stack = stack;
                }
            }
            Op::Output(Target::Port(port) | Target::Truncated { port, .. })
                if u128::from(*port) == key.get(Field::InPort) => {}
            Op::Output(target) => sink.output(target, key),
            Op::Ct(call) => {
                sink.ct(call, key);
                clear_ct(key);
            }
            Op::CtClear => {
                clear_ct(key);
                sink.ct_clear();
            }
            Op::Learn(learn) => sink.learn(learn, key),
            Op::Meter(meter) => sink.meter(*meter),
        }
    }
}

/// Removes the outer VLAN tag.
pub(crate) fn pop_vlan(key: &mut Key) {
    key.0[VLAN] <<= 32;
}

/// Lowers a field of a few bits by one, unless it is zero.
#[inline]
fn count_down(key: &mut Key, field: Field) {
    let info = field.info();
    let word = &mut key.0[usize::from(info.word)];
    if *word >> info.shift & low64(info.stored) != 0 {
        *word -= 1 << info.shift;
    }
}

/// Forgets what the connection tracker said: that is known only to the copy that comes back.
fn clear_ct(key: &mut Key) {
    static BITS: OnceLock<Vec<(usize, u64)>> = OnceLock::new();
    let bits = BITS.get_or_init(|| {
        let mask = Mask::of(&CT_FIELDS);
        (0..WORDS).filter(|n| mask.0[*n] != 0).map(|n| (n, !mask.0[n])).collect()
    });
    for &(word, others) in bits {
        key.0[word] &= others;
    }
}

/// What the connection tracker writes.
pub(crate) const CT_FIELDS: [Field; 11] = [
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::CtNwProto,
    Field::CtNwSrc,
    Field::CtNwDst,
    Field::CtIpv6Src,
    Field::CtIpv6Dst,
    Field::CtTpSrc,
    Field::CtTpDst,
];

fn fix_vlan(key: &mut Key) {
    if key.get(Field::VlanTci) != 0 && key.get(Field::VlanTpid) == 0 {
        key.set(Field::VlanTpid, 0x8100);
    }
}

fn push_mpls(key: &mut Key, ethertype: u16, first: bool) {
    let lse = match first {
        true => {
            let (label, ip) = match key.get(Field::EthType) {
                0x86dd => (2u64, true),
                kind => (0, kind == 0x0800),
            };
            let (tc, ttl) = match ip {
                true => ((key.get(Field::NwTos) >> 2 & 7) as u64, key.get(Field::NwTtl) as u64),
                false => (0, 64),
            };
            label << 12 | tc << 9 | 1 << 8 | if ttl == 0 { 64 } else { ttl }
        }
        false => key.get(Field::MplsLse0) as u64 & !0x100,
    };
    key.set(Field::MplsLse2, if first { 0 } else { key.get(Field::MplsLse1) });
    key.0[MPLS] = lse << 32 | if first { 0 } else { key.0[MPLS] >> 32 };
    key.set(Field::EthType, u128::from(ethertype));
}

/// The bits needed at a point of a program so that what follows goes the same way; moved backwards op by op.
#[derive(Clone, Debug, Default)]
pub struct Need {
    /// The bits.
    pub mask: Mask,
    popped: Vec<u128>,
    restored: Vec<(Mask, Vec<u128>)>,
}

impl Need {
    /// Needs these bits here.
    pub fn new(mask: Mask) -> Need {
        Need { mask, popped: Vec::new(), restored: Vec::new() }
    }

    /// Moves to before these ops.
    pub fn before(&mut self, ops: &[Op]) {
        for op in ops.iter().rev() {
            self.before_op(op);
        }
    }

    /// Both lists end with what lies on top of the stack.
    fn merge_popped(&mut self, other: Vec<u128>) {
        let (mut long, short) = if self.popped.len() >= other.len() {
            (std::mem::take(&mut self.popped), other)
        } else {
            (other, std::mem::take(&mut self.popped))
        };
        let offset = long.len() - short.len();
        for (n, bits) in short.into_iter().enumerate() {
            long[offset + n] |= bits;
        }
        self.popped = long;
    }

    fn take(&mut self, field: Subfield) -> u128 {
        let bits = self.mask.get(field.field) & field.field_mask();
        let rest = self.mask.get(field.field) & !field.field_mask();
        self.mask.remove(field.field);
        self.mask.add_bits(field.field, rest);
        bits >> field.offset
    }

    fn before_op(&mut self, op: &Op) {
        let mask = &mut self.mask;
        match op {
            Op::Set { word, mask: m, .. } => mask.0[usize::from(*word)] &= !m,
            Op::Move { from, to } => {
                let bits = self.take(*to);
                self.mask.add_bits(from.field, (bits << from.offset) & from.field_mask());
            }
            Op::DecTtl if mask.get(Field::NwTtl) != 0 => mask.add(Field::NwTtl),
            Op::DecMplsTtl if mask.get(Field::MplsTtl) != 0 => mask.add(Field::MplsTtl),
            Op::PushVlan(_) => mask.0[VLAN] <<= 32,
            Op::PopVlan => mask.0[VLAN] >>= 32,
            Op::FixVlanType if mask.get(Field::VlanTpid) != 0 => {
                mask.add(Field::VlanTpid);
                mask.add(Field::VlanTci);
            }
            Op::PushMpls { first, .. } => need_push_mpls(mask, *first),
            Op::PopMpls(_) => {
                let low = mask.0[MPLS] & 0xffff_ffff;
                mask.0[MPLS] >>= 32;
                mask.remove(Field::MplsLse2);
                mask.add_bits(Field::MplsLse2, u128::from(low));
                mask.remove(Field::EthType);
            }
            Op::Pop(to) => {
                let bits = self.take(*to);
                self.popped.push(bits);
            }
            Op::Push(from) => {
                let bits = self.popped.pop().unwrap_or(0);
                self.mask.add_bits(from.field, (bits << from.offset) & from.field_mask());
            }
            Op::Restore => self.restored.push((std::mem::take(mask), std::mem::take(&mut self.popped))),
            Op::Save => {
                if let Some((other, popped)) = self.restored.pop() {
                    mask.merge(&other);
                    self.merge_popped(popped);
                }
            }
            Op::CtClear | Op::Ct(_) => CT_FIELDS.iter().for_each(|field| mask.remove(*field)),
            _ => {}
        }
    }
}

fn need_push_mpls(mask: &mut Mask, first: bool) {
    let (outer, inner, third) = (mask.get(Field::MplsLse0), mask.get(Field::MplsLse1), mask.get(Field::MplsLse2));
    mask.0[MPLS] = 0;
    mask.remove(Field::MplsLse2);
    mask.remove(Field::EthType);
    if first {
        if outer != 0 {
            mask.add(Field::EthType);
            mask.add(Field::NwTos);
            mask.add(Field::NwTtl);
        }
        return;
    }
    mask.add_bits(Field::MplsLse0, outer & !0x100 | inner);
    mask.add_bits(Field::MplsLse1, third);
}

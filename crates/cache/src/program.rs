// SPDX-License-Identifier: Apache-2.0
//! What an entry does, in as few operations as it takes.
//!
//! A program as recorded does everything that the tables did: registers are written a field at a time and again, saved on the stack around a
//! `resubmit` and restored, and the whole key is kept for a `clone` after which nothing is sent. On OVN-Kubernetes' tables that is 41 operations
//! a traversal, and doing them took longer than finding the entry.
//!
//! # The property
//! Whoever is told of anything (an output, the connection tracker, a learned flow, a meter) is told the same in the same order, with the same key in
//! every bit; and unless nothing follows, the key at the end is the same. So the short program can stand for the long one everywhere but in the question
//! which bits it writes on its way ([`Program::written`]), which is answered from the long one.
//!
//! # How
//! The program is gone through once. Constants are kept back ([`Overlay`]) until somebody looks: then one write a word is made of all of them. What is
//! pushed on the stack is remembered as a constant, or as a place whose bits nothing that was issued has changed since; taking it back to where it came from is
//! then to forget what was kept back there. A kept key ([`Op::Save`]) has what was kept back beside it; if nothing was issued in between that writes, neither it nor its
//! return is issued. Should a place be written while it lies on the stack, the push is issued after all, with all below it. The one case that is left
//! (a constant under such a place) leaves the program as it was but for runs of constants.
use crate::segment::Nobody;
use crate::table::Sparse;
use crate::words::{sparse, WORDS};
use pipeline::{Field, Key, Machine, Mask, Op, Step, Subfield};

/// What the steps of an entry do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The operations.
    pub ops: Box<[Op]>,
    /// The bits that any step writes, also if it puts them back: what later steps see there is not what an entry matches.
    pub written: Sparse,
}

impl Program {
    /// Of these operations; if they are the last ones of a pass, nobody sees the key after them.
    pub fn of<'a>(ops: impl Iterator<Item = &'a Op> + Clone, last: bool) -> Program {
        let mut written = Mask::default();
        ops.clone().for_each(|op| op.writes(&mut written));
        let short = Shortener::default().run(ops.clone(), last);
        Program { ops: short.unwrap_or_else(|| join(ops)).into(), written: sparse(&written.0) }
    }

    /// Of these steps.
    pub fn of_steps<'a>(steps: impl Iterator<Item = &'a Step> + Clone, last: bool) -> Program {
        Program::of(steps.flat_map(|s| s.ops.iter()), last)
    }
}

/// One program of several, with constant writes to the same word in a row made one.
fn join<'a>(ops: impl Iterator<Item = &'a Op>) -> Vec<Op> {
    let (mut all, mut overlay) = (Vec::new(), Overlay::default());
    for op in ops {
        match op {
            Op::Set { word, value, mask } => overlay.set(*word, *value, *mask),
            other => {
                overlay.issue(&mut all);
                all.push(other.clone());
            }
        }
    }
    overlay.issue(&mut all);
    all
}

/// Constants that are not written yet.
#[derive(Clone, Debug, Default)]
struct Overlay {
    value: Key,
    mask: Mask,
    /// Bit N: word N has some.
    words: u64,
}

impl Overlay {
    fn set(&mut self, word: u8, value: u64, mask: u64) {
        let at = usize::from(word) % WORDS;
        self.value.0[at] = self.value.0[at] & !mask | value & mask;
        self.mask.0[at] |= mask;
        self.words |= 1 << at;
    }

    fn write(&mut self, to: Subfield, value: u128) {
        to.write(&mut self.value, value);
        to.depends(&mut self.mask);
        self.words |= self.mask.words();
    }

    /// Forgets some bits.
    fn forget(&mut self, bits: &Mask) {
        self.mask.0.iter_mut().zip(&bits.0).for_each(|(m, b)| *m &= !b);
        self.value = self.value.masked(&self.mask);
    }

    /// Writes all of them, words in order.
    fn issue(&mut self, out: &mut Vec<Op>) {
        while self.words != 0 {
            let at = self.words.trailing_zeros() as usize;
            self.words &= self.words - 1;
            let (value, mask) = (std::mem::take(&mut self.value.0[at]), std::mem::take(&mut self.mask.0[at]));
            if mask != 0 {
                out.push(Op::Set { word: at as u8, value, mask });
            }
        }
    }
}

fn bits(of: Subfield) -> Mask {
    let mut mask = Mask::default();
    of.depends(&mut mask);
    mask
}

/// What lies on the stack.
#[derive(Clone, Copy, Debug)]
enum Pushed {
    Constant(u128),
    /// What stands here in the key as issued.
    Place(Subfield),
    /// It was issued. All below it were, too.
    Real,
}

/// A kept key.
#[derive(Debug)]
struct Saved {
    overlay: Overlay,
    stack: Vec<Pushed>,
    /// Where its [`Op::Save`] stands.
    at: usize,
    /// Whether anything was issued since that changes the key or the stack.
    changed: bool,
}

#[derive(Debug, Default)]
struct Shortener {
    out: Vec<Op>,
    overlay: Overlay,
    stack: Vec<Pushed>,
    saved: Vec<Saved>,
}

impl Shortener {
    /// The short program; none if this one cannot be shortened.
    fn run<'a>(mut self, ops: impl Iterator<Item = &'a Op>, last: bool) -> Option<Vec<Op>> {
        for op in ops {
            self.step(op)?;
        }
        if last {
            let told = |op: &Op| matches!(op, Op::Output(_) | Op::Ct(_) | Op::CtClear | Op::Learn(_) | Op::Meter(_));
            self.out.truncate(self.out.iter().rposition(told).map_or(0, |at| at + 1));
            self.drop_open_saves();
        } else {
            if !self.stack.is_empty() || !self.saved.is_empty() {
                return None;
            }
            self.issue_overlay()?;
        }
        Some(self.out)
    }

    /// A key that is kept and never taken back need not be kept.
    fn drop_open_saves(&mut self) {
        let mut returns = 0;
        for at in (0..self.out.len()).rev() {
            match self.out[at] {
                Op::Restore => returns += 1,
                Op::Save if returns == 0 => drop(self.out.remove(at)),
                Op::Save => returns -= 1,
                _ => {}
            }
        }
    }

    fn step(&mut self, op: &Op) -> Option<()> {
        match op {
            Op::Set { word, value, mask } => self.overlay.set(*word, *value, *mask),
            Op::Move { from, to } => match self.read(*from)? {
                Some(value) => self.overlay.write(*to, value),
                None => self.copy(*from, *to)?,
            },
            Op::Push(from) => {
                let pushed = match self.read(*from)? {
                    Some(value) => Pushed::Constant(value),
                    None => Pushed::Place(*from),
                };
                self.stack.push(pushed);
            }
            Op::Pop(to) => match self.stack.pop()? {
                Pushed::Constant(value) => self.overlay.write(*to, value),
                Pushed::Place(from) if from == *to => self.overlay.forget(&bits(*to)),
                Pushed::Place(from) => self.copy(from, *to)?,
                Pushed::Real => self.write(op, &bits(*to))?,
            },
            Op::Save => {
                let (overlay, stack) = (self.overlay.clone(), self.stack.clone());
                self.saved.push(Saved { overlay, stack, at: self.out.len(), changed: false });
                self.out.push(Op::Save);
            }
            Op::Restore => self.restore()?,
            Op::Output(_) | Op::Learn(_) => {
                self.issue_overlay()?;
                self.out.push(op.clone());
            }
            Op::Meter(_) => self.out.push(op.clone()),
            Op::Ct(_) => {
                self.issue_overlay()?;
                // Address translation may write anything.
                self.write(op, &Mask::all())?;
            }
            Op::DecTtl => match self.read(Field::NwTtl.whole())? {
                Some(value) => {
                    let mut machine = Machine::default();
                    machine.key.set(Field::NwTtl, value);
                    machine.step(op, &mut Nobody);
                    self.overlay.write(Field::NwTtl.whole(), machine.key.get(Field::NwTtl));
                }
                None => self.plain(op)?,
            },
            Op::DecMplsTtl
            | Op::PushVlan(_)
            | Op::PopVlan
            | Op::FixVlanType
            | Op::PushMpls { .. }
            | Op::PopMpls(_)
            | Op::CtClear => self.plain(op)?,
        }
        Some(())
    }

    /// An operation of which only is known what it reads and writes.
    fn plain(&mut self, op: &Op) -> Option<()> {
        let (mut reads, mut writes) = (Mask::default(), Mask::default());
        op.reads(&mut reads);
        op.writes(&mut writes);
        reads.merge(&writes);
        if reads.intersects(&self.overlay.mask) {
            self.issue_overlay()?;
        }
        self.write(op, &writes)
    }

    /// The value of some bits, if it is a constant; else they stand as issued.
    fn read(&mut self, from: Subfield) -> Option<Option<u128>> {
        let bits = bits(from);
        if bits.is_subset(&self.overlay.mask) {
            return Some(Some(from.read(&self.overlay.value)));
        }
        if bits.intersects(&self.overlay.mask) {
            self.issue_overlay()?;
        }
        Some(None)
    }

    /// Copies bits of the key as issued.
    fn copy(&mut self, from: Subfield, to: Subfield) -> Option<()> {
        self.write(&Op::Move { from, to }, &bits(to))
    }

    /// Issues an operation that writes some bits, whatever was kept back for them.
    fn write(&mut self, op: &Op, bits: &Mask) -> Option<()> {
        self.make_real(bits)?;
        self.overlay.forget(bits);
        self.out.push(op.clone());
        self.note_change();
        Some(())
    }

    fn issue_overlay(&mut self) -> Option<()> {
        if self.overlay.words != 0 && !self.overlay.mask.is_empty() {
            let bits = self.overlay.mask;
            self.make_real(&bits)?;
            self.note_change();
        }
        self.overlay.issue(&mut self.out);
        Some(())
    }

    fn note_change(&mut self) {
        self.saved.iter_mut().for_each(|s| s.changed = true);
    }

    /// Places on the stack are pushed before these bits of them are written.
    fn make_real(&mut self, written: &Mask) -> Option<()> {
        let concerns = |p: &Pushed| matches!(p, Pushed::Place(from) if bits(*from).intersects(written));
        let Some(top) = self.stack.iter().rposition(concerns) else { return Some(()) };
        for pushed in &mut self.stack[..=top] {
            match *pushed {
                Pushed::Constant(_) => return None,
                Pushed::Place(from) => {
                    self.out.push(Op::Push(from));
                    *pushed = Pushed::Real;
                }
                Pushed::Real => {}
            }
        }
        self.note_change();
        Some(())
    }

    fn restore(&mut self) -> Option<()> {
        let Saved { overlay, stack, at, changed } = self.saved.pop()?;
        match changed {
            true => self.out.push(Op::Restore),
            false => drop(self.out.remove(at)),
        }
        (self.overlay, self.stack) = (overlay, stack);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::{CtCall, Sink, Target};
    use rand::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;
    use std::sync::Arc;

    #[derive(Debug, Default, PartialEq)]
    struct Told(Vec<(u32, Key)>);

    impl Sink for Told {
        fn output(&mut self, target: &Target, key: &Key) {
            let Target::Port(port) = target else { panic!("only ports are used here") };
            self.0.push((u32::from(*port), *key));
        }
        fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
        fn ct_clear(&mut self) {
            self.0.push((1 << 20, Key::default()));
        }
        fn meter(&mut self, meter: u32) {
            self.0.push((1 << 21 | meter, Key::default()));
        }
    }

    /// Few places, so that they meet.
    fn place(random: &mut SplitMix64, bits: u8) -> Subfield {
        let fields = [Field::Reg0, Field::Reg1, Field::InPort, Field::EthDst, Field::NwTtl, Field::CtMark];
        let field = fields[(random.next_u64() % 6) as usize];
        let bits = bits.min(field.info().bits);
        let room = field.info().bits - bits;
        Subfield { field, offset: if room == 0 { 0 } else { (random.next_u64() % 3) as u8 * (room / 2) }, bits }
    }

    fn program(random: &mut SplitMix64) -> Vec<Op> {
        let (mut ops, mut depth, mut saved) = (Vec::new(), 0, Vec::new());
        for _ in 0..random.next_u64() % 40 {
            let bits = [1, 8, 16, 32][(random.next_u64() % 4) as usize];
            match random.next_u64() % 16 {
                0..=4 => Op::set(place(random, bits), u128::from(random.next_u64() & 3), &mut ops),
                5 | 6 => ops.push(Op::Move { from: place(random, bits), to: place(random, bits) }),
                7 | 8 => {
                    depth += 1;
                    ops.push(Op::Push(place(random, bits)));
                }
                9 | 10 if depth > 0 => {
                    depth -= 1;
                    // Most go back to where they came from.
                    let from = ops.iter().rev().find_map(|op| match op {
                        Op::Push(from) => Some(*from),
                        _ => None,
                    });
                    let to = from.filter(|_| !random.next_u64().is_multiple_of(4)).unwrap_or(place(random, bits));
                    ops.push(Op::Pop(to));
                }
                11 => {
                    saved.push(depth);
                    ops.push(Op::Save);
                }
                12 => {
                    if let Some(before) = saved.pop() {
                        depth = before;
                        ops.push(Op::Restore);
                    }
                }
                13 => ops.push(Op::Output(Target::Port((random.next_u64() % 4) as u16))),
                14 => ops.push(
                    [Op::DecTtl, Op::CtClear, Op::PushVlan(0x8100), Op::PopVlan][(random.next_u64() % 4) as usize]
                        .clone(),
                ),
                _ => ops.push(Op::Meter((random.next_u64() % 4) as u32)),
            }
        }
        while let Some(before) = saved.pop() {
            depth = before;
            ops.push(Op::Restore);
        }
        (0..depth).for_each(|_| ops.push(Op::Pop(Field::Reg1.whole())));
        ops
    }

    fn told(ops: &[Op], key: &Key) -> (Told, Key) {
        let (mut told, mut machine) = (Told::default(), Machine::new(*key));
        machine.run(ops, &mut told);
        (told, machine.key)
    }

    #[test]
    fn a_short_program_tells_the_same_of_the_same_key() {
        let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        let (mut long, mut short, mut unchanged, mut all) = (0, 0, 0, 0);
        for seed in seed * 100_000..seed * 100_000 + 6_000 {
            let mut random = SplitMix64::seed_from_u64(seed);
            let ops = program(&mut random);
            let (middle, last) = (Program::of(ops.iter(), false), Program::of(ops.iter(), true));
            for _ in 0..4 {
                let mut key = Key(std::array::from_fn(|_| random.next_u64()));
                key.set(Field::InPort, u128::from(random.next_u64() % 4));
                let (want, end) = told(&ops, &key);
                assert_eq!(
                    told(&middle.ops, &key),
                    (told(&ops, &key).0, end),
                    "seed {seed}: {ops:?}\n{:?}",
                    middle.ops
                );
                assert_eq!(told(&last.ops, &key).0, want, "seed {seed}: {ops:?}\n{:?}", last.ops);
            }
            assert!(
                last.ops.len() <= ops.len() + 8
                    && Shortener::default().run(ops.iter(), false).is_none_or(|s| s[..] == middle.ops[..])
            );
            unchanged += usize::from(Shortener::default().run(ops.iter(), false).is_none());
            (long, short, all) = (long + ops.len(), short + last.ops.len(), all + 1);
        }
        println!("{long} operations became {short}; {unchanged} of {all} programs could not be shortened");
        assert!(short * 3 < long * 2 && unchanged * 10 < all, "{long} {short} {unchanged}");
    }

    #[test]
    fn what_a_resubmit_saves_and_a_clone_writes_leaves_nothing_behind() {
        let set = |word, value| Op::Set { word, value, mask: !0 };
        let port = Field::InPort.whole();
        let ops = [
            set(13, 1),
            Op::Push(port),
            set(usize::from(Field::InPort.info().word) as u8, 0),
            set(13, 2),
            Op::Pop(port),
            Op::Save,
            set(14, 5),
            Op::Restore,
            Op::Output(Target::Port(2)),
            set(15, 6),
        ];
        // The port's word holds more than the port: what else was written there stays.
        let short = Program::of(ops.iter(), true);
        assert_eq!(short.ops.last(), Some(&Op::Output(Target::Port(2))));
        assert!(
            short.ops.iter().all(|op| !matches!(op, Op::Push(_) | Op::Pop(_) | Op::Save | Op::Restore)),
            "{short:?}"
        );
        assert!(
            short.ops.contains(&set(13, 2)) && !short.ops.iter().any(|op| matches!(op, Op::Set { word: 14 | 15, .. }))
        );
        assert!(short.written.iter().any(|w| w.0 == 14), "what was put back was written all the same");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Actions that change the packet.

use super::Run;
use crate::field::{Field, Prereq, Subfield};
use crate::key::Mask;
use crate::op::{Op, Reason, Target, ToController};
use crate::select::{Bundle, Multipath};
use crate::traversal::{Failure, Remark};
use std::sync::Arc;

impl Run<'_> {
    fn emit_all(&mut self, ops: Vec<Op>) {
        ops.into_iter().for_each(|op| self.emit(op));
    }

    /// Writes these bits, whatever the packet is.
    pub(super) fn write(&mut self, field: Field, value: u128, mask: u128) {
        let mut ops = Vec::new();
        Op::set_masked(field, value, mask, &mut ops);
        self.emit_all(ops);
    }

    pub(super) fn set(&mut self, field: Field, value: u128, mask: u128) {
        if self.is(field.info().prereq) {
            self.write(field, value, mask);
            self.now_there(field);
            if field == Field::VlanTci {
                self.emit(Op::FixVlanType);
            }
        }
    }

    /// A tunnel option that is written is there.
    fn now_there(&mut self, field: Field) {
        if let Some(bit) = field.presence() {
            self.write(Field::TunPresent, bit, bit);
        }
    }

    pub(super) fn copy_bits(&mut self, from: Subfield, to: Subfield) {
        if self.is(from.field.info().prereq) && self.is(to.field.info().prereq) {
            self.emit(Op::Move { from, to });
            self.now_there(to.field);
        }
    }

    pub(super) fn delete_field(&mut self, field: Field) {
        self.write(field, 0, u128::MAX);
        if let Some(bit) = field.presence() {
            self.write(Field::TunPresent, 0, bit);
        }
    }

    pub(super) fn pop(&mut self, bits: Subfield) {
        match self.machine.stack.is_empty() {
            true => self.remark(Remark::EmptyStack),
            false => {
                self.emit(Op::Pop(bits));
                self.now_there(bits.field);
            }
        }
    }

    /// Of a packet without a tag Open vSwitch makes one with a tag; flows that say so are refused, buckets of groups are not.
    pub(super) fn set_vlan(&mut self, value: u128, bits: u128) {
        match self.is(Prereq::Vlan) {
            true => self.write(Field::VlanTci, value, bits),
            false => {
                self.write(Field::VlanTci, value | 0x1000, u128::MAX);
                self.write(Field::VlanTpid, 0x8100, u128::MAX);
            }
        }
    }

    pub(super) fn push_mpls(&mut self, ethertype: u16) {
        match self.labels() {
            3.. => self.failed = Some(Failure::TooManyLabels),
            n => self.emit(Op::PushMpls { ethertype, first: n == 0 }),
        }
    }

    fn labels(&mut self) -> usize {
        if !self.is(Prereq::Mpls) {
            return 0;
        }
        for (n, field) in [Field::MplsLse0, Field::MplsLse1].into_iter().enumerate() {
            self.depends_on(field, 0x100);
            if self.machine.key.get(field) & 0x100 != 0 {
                return n + 1;
            }
        }
        3
    }

    pub(super) fn pop_mpls(&mut self, ethertype: u16) {
        if self.is(Prereq::Mpls) {
            if matches!(ethertype, 0x0800 | 0x86dd) && self.machine.key.get(Field::NwTtl) == 0 {
                self.remark(Remark::BehindLabel);
            }
            self.emit(Op::PopMpls(ethertype));
        }
    }

    /// A TTL above 1 has a bit above the lowest set: that bit is all that the decision depends on.
    pub(super) fn decrement(&mut self, prereq: Prereq, field: Field, op: Op, controllers: &[u16]) {
        if !self.is(prereq) {
            return;
        }
        let ttl = self.machine.key.get(field) as u8;
        if ttl > 1 {
            self.depends_on(field, 1 << ttl.ilog2());
            return self.emit(op);
        }
        self.depends_on(field, 0xfe);
        for &id in controllers {
            let to = ToController { id, ..ToController::plain(Reason::InvalidTtl) };
            self.emit(Op::Output(Target::Controller(Arc::new(to))));
        }
        self.stop_list();
    }

    pub(super) fn multipath(&mut self, multipath: &Multipath) {
        let mut mask = Mask::default();
        let link = multipath.link(&self.machine.key, &mut mask);
        self.depend(mask);
        self.assign(multipath.to, u128::from(link));
    }

    pub(super) fn bundle(&mut self, bundle: &Bundle) {
        let mut mask = Mask::default();
        let port = bundle.port(&self.machine.key, &mut mask);
        self.depend(mask);
        match bundle.to {
            Some(to) => self.assign(to, u128::from(port)),
            None => self.output(port),
        }
    }

    pub(super) fn assign(&mut self, to: Subfield, value: u128) {
        let mut ops = Vec::new();
        Op::set(to, value, &mut ops);
        self.emit_all(ops);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Meter: two-rate three-color limits (RFC 2698, color-blind) of the sending VPC, then of the receiving VM.

use abi::{DropReason, LineNo, Stage, VM_FLAG_METERED};
use tables::Color;

use crate::packet::Packet;
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::Verdict;

/// The stage.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) -> Result<(), Verdict> {
    // A VPC's meter is for what it sends.
    let vpc = if p.inward { LineNo(0) } else { w.tables.tenant_meter(&p.tenant) };
    if vpc.0 | p.vm.flags & VM_FLAG_METERED == 0 {
        return Ok(());
    }
    Ok(both(w, p, vpc)?)
}

/// The VPC's meter alone, for what leaves to the Internet.
pub(crate) fn vpc<R: Recorder>(w: &mut Work<'_, R>, p: &Packet) -> Result<(), DropReason> {
    let line = w.tables.tenant_meter(&p.tenant);
    measure(w, p, "VPC", line, DropReason::MeterVpc)
}

/// The VPC's meter, then the VM's.
#[cold]
fn both<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, vpc: LineNo) -> Result<(), DropReason> {
    measure(w, p, "VPC", vpc, DropReason::MeterVpc)?;
    let vm = p.vm;
    match vm.flags & VM_FLAG_METERED {
        0 => Ok(()),
        _ => measure(w, p, "VM", w.tables.vm_meter(vm.vm), DropReason::MeterVm),
    }
}

/// Asks one meter; red is dropped.
fn measure<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &Packet,
    of: &'static str,
    line: LineNo,
    reason: DropReason,
) -> Result<(), DropReason> {
    if line == LineNo(0) || !R::COUNTS {
        return Ok(());
    }
    let color = w.tables.meter(line, p.inner_len as u32, w.now);
    if R::ON {
        let color = match color {
            Color::Green => "green",
            Color::Yellow => "yellow",
            Color::Red => "red",
        };
        w.note(p, Stage::Meter, Event::Meter { of, line, color });
    }
    match color {
        Color::Red => Err(reason),
        Color::Green | Color::Yellow => Ok(()),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Meter: two-rate three-color limits (RFC 2698, color-blind) of the sending VPC, then of the receiving VM.

use abi::{DropReason, Stage, VM_FLAG_METERED};
use tables::Color;

use crate::record::{Event, Recorder};
use crate::work::Work;

/// The stage, over the batch.
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, '_, R>) {
    w.each(|w, i| {
        let p = &w.packets[i as usize];
        let vpc = w.tables.tenant_meter(&p.tenant);
        if vpc | p.vm.flags & VM_FLAG_METERED == 0 {
            return Ok(());
        }
        let metered = p.vm.flags & VM_FLAG_METERED != 0;
        measure(w, i, "VPC", vpc, DropReason::MeterVpc)?;
        if metered {
            let line = w.tables.vm_meter(w.packets[i as usize].vm.vm);
            measure(w, i, "VM", line, DropReason::MeterVm)?;
        }
        Ok(())
    });
}

/// Asks one meter; red is dropped.
fn measure<R: Recorder>(
    w: &mut Work<'_, '_, R>,
    i: u8,
    of: &'static str,
    line: u32,
    reason: DropReason,
) -> Result<(), DropReason> {
    if line == 0 {
        return Ok(());
    }
    let color = w.tables.meter(line, w.packets[i as usize].inner_len as u32, w.now);
    if R::ON {
        let color = match color {
            Color::Green => "green",
            Color::Yellow => "yellow",
            Color::Red => "red",
        };
        w.note(i, Stage::Meter, Event::Meter { of, line, color });
    }
    match color {
        Color::Red => Err(reason),
        Color::Green | Color::Yellow => Ok(()),
    }
}

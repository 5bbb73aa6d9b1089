// SPDX-License-Identifier: Apache-2.0
//! The region of `tests/common`, and single stages run on it as `Gateway::run` would run them.

#[path = "../tests/common/mod.rs"]
pub(crate) mod region;

use crate::connections::{Connections, SessionView};
use crate::control::Controls;
use crate::frame::Output;
use crate::settings::Settings;
use crate::work::Work;
use crate::NoRecorder;
use tables::{Count, Tables};

/// Calls `f` with the work of one batch on these tables.
pub(crate) fn with_work<T>(
    tables: &Tables,
    connections: Option<&Connections>,
    now: u64,
    f: impl FnOnce(&mut Work<'_, NoRecorder>) -> T,
) -> (T, Output) {
    let (mut output, mut idents) = (Output::default(), 0);
    let _inside = tables.enter();
    let (sessions, rules) = (
        connections.map(|c| c.tracker().sessions()),
        connections.map(|c| (c.rules(), c.states(), c.handovers(), c.mirrors())),
    );
    let guard = sessions.as_ref().map(|sessions| sessions.enter());
    let all = connections.zip(guard.as_ref()).zip(rules.as_ref());
    let sight = all.map(|((connections, guard), (filter, states, handovers, mirrors))| SessionView {
        connections,
        guard,
        filter,
        states: states.as_deref(),
        handovers,
        mirrors,
    });
    let (slot, controls) = (tables.slots().1, Controls::default());
    let mut w = Work {
        tables,
        settings: Settings::read(tables),
        output: &mut output,
        recorder: &mut NoRecorder,
        stats: tables.stats(slot),
        slot,
        cells: tables.slot_cells(slot),
        now,
        rx: Count::default(),
        sent: Count::default(),
        walking: 0,
        prefetched: 0,
        sessions: sight,
        queued: Vec::new(),
        completions: None,
        controls: &controls,
        idents: &mut idents,
        flows: None,
    };
    let out = f(&mut w);
    drop(w);
    (out, output)
}

// SPDX-License-Identifier: Apache-2.0
//! Any frame through a switch by flows.

use super::{repository_files, Target};
use pipeline::text::{self, ImportOptions};
use pipeline::Switch;

/// Ports of the switches: 1 to this.
const PORTS: u16 = 12;
const MILLISECOND: u64 = 1_000_000;

/// One switch for each flow file.
pub struct Switches {
    switches: Vec<Switch>,
    now: u64,
}

impl Switches {
    /// Loads the files.
    pub fn new() -> Switches {
        let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
        let load = |file: Vec<u8>| {
            let text = String::from_utf8_lossy(&file).into_owned();
            let import = text::import(&text, &lenient).unwrap_or_else(|e| panic!("{e}"));
            Switch::new(import.pipeline, 1..=PORTS, 0)
        };
        let files = ["tests/pipelines", "examples"].map(|folder| repository_files(folder, ".flows"));
        Switches { switches: files.into_iter().flatten().map(load).collect(), now: 0 }
    }
}

impl Target for Switches {
    fn name(&self) -> &'static str {
        "switch"
    }

    /// A switch, a port, and the frame.
    fn run(&mut self, input: &[u8]) -> u64 {
        let Some(([which, port], frame)) = input.split_first_chunk::<2>() else { return 0 };
        let n = usize::from(*which) % self.switches.len();
        let switch = &mut self.switches[n];
        self.now += MILLISECOND;
        let mut out = Vec::new();
        let before = *switch.totals();
        let outcome = switch.frame(frame, u16::from(*port) % PORTS + 1, self.now, &mut out);
        switch.expire(self.now);
        let after = switch.totals();
        assert_eq!(after.received, before.received + 1);
        let handed = after.forwarded + after.copies - before.forwarded - before.copies;
        assert_eq!(handed, out.len() as u64);
        assert_eq!(outcome.is_ok(), !out.is_empty());
        let dropped = |totals: &pipeline::Totals| totals.dropped.iter().sum::<u64>();
        assert_eq!(dropped(after), dropped(&before) + u64::from(outcome.is_err()));
        let sent = out.first().map_or(0, |(port, frame)| u64::from(*port) << 8 | u64::from(frame.len() as u8 >> 4));
        (n as u64) << 32 | outcome.err().map_or(0, |why| why as u64 + 1) << 24 | (out.len() as u64).min(15) << 20 | sent
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let udp =
            [0x45, 0, 0, 32, 0, 1, 0x40, 0, 64, 17, 0x66, 0xc6, 10, 0, 0, 5, 10, 1, 2, 3, 15, 160, 0, 53, 0, 12, 0, 0];
        let kinds: [&[u8]; 4] = [&[8, 0], &[0x81, 0, 0, 5, 8, 0], &[0x88, 0x47, 0, 1, 1, 64], &[0x86, 0xdd]];
        let frame = |kind: &[u8], port: u8, which: u8| {
            [&[which, port, 10, 0, 0, 0, 0, 1, 10, 0, 0, 0, 0, 2], kind, &udp, &[0; 60]].concat()
        };
        let ports = (0..PORTS as u8).flat_map(|port| kinds.map(|kind| (kind, port)));
        ports.flat_map(|(kind, port)| (0..2).map(move |which| frame(kind, port, which))).collect()
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Rule sets in the format of ClassBench.

use super::{sentence, Target};
use cache::workload::rules;

/// Files of rules, which `tunny-lab cache compare --classbench` and `tunny-lab bench` read.
pub struct Rules;

impl Target for Rules {
    fn name(&self) -> &'static str {
        "rules"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(input);
        match rules::parse("f", &text) {
            Ok(read) => {
                assert!(!read.is_empty() && read.len() <= text.lines().count());
                for rule in &read {
                    assert!([rule.sport, rule.dport].iter().all(|(low, high)| low <= high), "{rule:?}");
                }
                read.iter()
                    .fold(1, |all: u64, rule| all.wrapping_mul(3).wrapping_add(u64::from(rule.protocol.is_some())))
            }
            Err(e) => {
                let said = e.to_string();
                let mut place = said.split(':').skip(1).map(|n| n.parse::<usize>().unwrap_or(0));
                let (line, column) = (place.next().unwrap_or(0), place.next().unwrap_or(0));
                let there = text.lines().nth(line.saturating_sub(1)).map_or(0, |l| l.chars().count());
                assert!(line >= 1 && column >= 1 && column <= there + 1, "{said}");
                sentence(&said)
            }
        }
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let lines = [
            "@10.0.0.0/8\t10.1.2.3/32\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0000/0x0000\n",
            "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00\n# a comment\n\n@1.2.3.4/32 5.6.7.8/31 5 : 5 1024 : 65535 0x11/0xFF\n",
        ];
        lines.iter().map(|l| l.as_bytes().to_vec()).collect()
    }
    fn words(&self) -> &'static [&'static str] {
        &["@", "/", " : ", "0x", "0xFF", "65536", "256", "33", "\t", "-1", "0x06/0xFF", "4294967296", "é"]
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Chip profiles: what is accepted must be a chip on which tables can be placed without a panic or an overfilled stage.

use super::{sentence, Target};
use chip::alloc::{audit, Chip};
use chip::{profile, Alpm, Bucket, Key, Kind, Packing, Table};

/// Profiles.
pub struct Profile;

impl Target for Profile {
    fn name(&self) -> &'static str {
        "profile"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let p = match profile::parse("fuzz.yaml", &String::from_utf8_lossy(input)) {
            Ok(p) => p,
            Err(e) => {
                assert!(e.line > 0 && !e.reason.is_empty());
                return sentence(&e.to_string());
            }
        };
        let alpm = Alpm { partitions: 1024, subtrees: 2, bucket: Bucket::Whole };
        let kinds = [Kind::Exact { digest: None }, Kind::Exact { digest: Some(20) }, Kind::Ternary, Kind::Alpm(alpm)];
        let mut chip = Chip::flat(&p);
        let mut outcome = 2;
        for (i, kind) in kinds.into_iter().enumerate() {
            let key = Key::named(if i % 2 == 0 { "vni_ip6" } else { "vni_ip4" }).expect("a known key");
            let t = Table { kind, key, entries: 300, action_bits: 16, packing: Packing::Straddling };
            outcome = outcome * 2 + u64::from(chip.place(&i.to_string(), &t, 0).is_ok());
        }
        assert_eq!(audit(&chip), Ok(()));
        outcome
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        profile::BUILT_IN.iter().map(|(_, text)| text.as_bytes().to_vec()).collect()
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "stages: 1",
            "sram_depth: 64",
            "tcam_per_stage: 0",
            "pack_max: 32",
            "4294967296",
            "-1",
            "loopback: no",
            "\n",
            ":",
            "#",
        ]
    }
}

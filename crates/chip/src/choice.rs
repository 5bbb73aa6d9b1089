// SPDX-License-Identifier: Apache-2.0
//! Techniques by name: what can be used together, and what cannot.

use crate::blocks::{Alpm, Bucket, Packing};
use crate::load::Load;
use crate::pipes::{allowed, arrange};
use crate::profile::ProfileError;
use crate::technique::{Routes, Split, Techniques, Vms};
use crate::{sailfish, Profile};

/// A technique that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None of them.
    None,
    /// Two pipes behind each other.
    Fold,
    /// Entries divided by the VNI's parity.
    SplitVni,
    /// Entries divided by the address's parity.
    SplitAddress,
    /// A table over both pipes of a pair.
    Across,
    /// Routes of both families in one table.
    PoolRoutes,
    /// VM addresses of both families in one table, IPv6 as a hash.
    PoolVms,
    /// VM addresses as digests.
    Digest,
    /// Algorithmic LPM.
    Alpm,
    /// Routes by prefix length.
    Lengths,
    /// Entries over word borders.
    Straddle,
}

/// Every technique with its name and what it does.
pub const CHOICES: &[(Choice, &str, &str)] = &[
    (Choice::None, "none", "No technique at all"),
    (Choice::Fold, "fold", "Pipes behind each other over looped-back ports, in pairs; halves the throughput"),
    (Choice::SplitVni, "split-vni", "Entries divided between two halves of the chip by the VNI's parity; needs fold and four pipes"),
    (Choice::SplitAddress, "split-address", "Entries divided between two halves of the chip by the address's parity; needs fold and four pipes"),
    (Choice::Across, "across", "A table may lie in both pipes of a pair; needs fold"),
    (Choice::PoolRoutes, "pool-routes", "IPv4 and IPv6 routes in one table"),
    (Choice::PoolVms, "pool-vms", "VM addresses of both families in one table, IPv6 as a 32-bit hash with a label and a table of conflicts; not with digest"),
    (Choice::Digest, "digest", "Digests instead of VM addresses, both families in one table; not with pool-vms"),
    (Choice::Alpm, "alpm", "Algorithmic LPM; not with lengths"),
    (Choice::Lengths, "lengths", "Hashing by prefix length, both families in the same tables; not with alpm"),
    (Choice::Straddle, "straddle", "Entries over the borders of words"),
];

impl Choice {
    /// The name by which it is asked for.
    pub fn name(self) -> &'static str {
        CHOICES.iter().find(|(c, ..)| *c == self).map_or("", |(_, name, _)| name)
    }
}

/// Parameters of techniques; None: the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Partitions and subtrees.
    pub alpm: Option<(u32, u32)>,
    /// Bits of a digest.
    pub digest_bits: Option<u32>,
    /// Bytes that a crossing of pipes carries along.
    pub bridge_bytes: Option<u32>,
}

/// What cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChoice {
    /// Two techniques, or a technique and its parameter, do not go together.
    #[error("{one} and {other} do not go together: {reason}")]
    Exclude {
        /// One.
        one: &'static str,
        /// The other.
        other: &'static str,
        /// Why, what to do.
        reason: &'static str,
    },
    /// A technique or parameter needs another one.
    #[error("{one} needs {other}: {reason}")]
    Needs {
        /// The one that was asked for.
        one: &'static str,
        /// The other.
        other: &'static str,
        /// Why, what to do.
        reason: &'static str,
    },
    /// The chip has not what it takes.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Pairs of which at most one can be used.
const EXCLUDE: &[(Choice, Choice, &str)] = &[
    (
        Choice::SplitVni,
        Choice::SplitAddress,
        "a packet belongs to the half that one parity says; leave one of them out",
    ),
    (
        Choice::PoolVms,
        Choice::Digest,
        "each is a way to store the same VM addresses, and digest has both families in one table too; leave one of them out",
    ),
    (Choice::Alpm, Choice::Lengths, "each is a way to store the same routes; leave one of them out"),
];

/// Techniques that mean nothing without another one.
const NEEDS: &[(Choice, &str)] = &[
    (Choice::SplitVni, "the halves to divide between come from folding; add it, or leave this out"),
    (Choice::SplitAddress, "the halves to divide between come from folding; add it, or leave this out"),
    (
        Choice::Across,
        "without folding a packet passes one pipe only, so there is no other to map a table to; add it, or leave this out",
    ),
];

/// The techniques of these names, refused where two of them do not go together or the chip has not what they take. None: all
/// of the paper's, as far as the chip's pipes allow.
pub fn choose(list: Option<&[Choice]>, with: &Parameters, p: &Profile, load: &Load) -> Result<Techniques, BadChoice> {
    let bucket = Bucket::Whole;
    let alpm = with.alpm.map_or(sailfish::PAPER_ALPM, |(partitions, subtrees)| Alpm { partitions, subtrees, bucket });
    let Some(list) = list else { return default(with, alpm, p) };
    let on = |c: Choice| list.contains(&c);
    if on(Choice::None) && list.iter().any(|c| *c != Choice::None) {
        return Err(BadChoice::Exclude {
            one: "none",
            other: "another technique",
            reason: "none means no technique at all",
        });
    }
    if let Some((one, other, reason)) = EXCLUDE.iter().find(|(a, b, _)| on(*a) && on(*b)) {
        return Err(BadChoice::Exclude { one: one.name(), other: other.name(), reason });
    }
    let fold = on(Choice::Fold);
    if let Some((one, reason)) = NEEDS.iter().find(|(c, _)| on(*c) && !fold) {
        return Err(BadChoice::Needs { one: one.name(), other: Choice::Fold.name(), reason });
    }
    for (given, one, needed, other) in [
        (with.alpm.is_some(), "--alpm", on(Choice::Alpm), "alpm"),
        (with.digest_bits.is_some(), "--digest-bits", on(Choice::Digest), "digest"),
        (with.bridge_bytes.is_some(), "--bridge-bytes", fold, "fold"),
    ] {
        if given && !needed {
            return Err(BadChoice::Needs {
                one,
                other,
                reason: "it is that technique's parameter; add it to --techniques",
            });
        }
    }
    let split = match (on(Choice::SplitVni), on(Choice::SplitAddress)) {
        (true, _) => Some(Split::Vni),
        (_, true) => Some(Split::Address),
        _ => None,
    };
    let vms = match (on(Choice::PoolVms), on(Choice::Digest)) {
        (_, true) => Vms::Digest { bits: with.digest_bits.unwrap_or(20), conflicts: crate::optimise::EXCEPTIONS },
        (true, _) => Vms::Label { conflicts: sailfish::PAPER_CONFLICTS },
        _ => Vms::Whole,
    };
    let t = Techniques {
        fold,
        split,
        across: !fold || on(Choice::Across),
        pool_routes: on(Choice::PoolRoutes) || on(Choice::Lengths),
        routes: if on(Choice::Alpm) { Routes::Alpm(alpm) } else { Routes::Ternary },
        vms,
        packing: if on(Choice::Straddle) { Packing::Straddling } else { Packing::Aligned },
        bridge_bytes: if fold { with.bridge_bytes.unwrap_or(p.bridge_header_bytes) } else { 0 },
        clusters: 1,
        nc_bits: if on(Choice::Digest) { load.nc_index_bits() } else { 32 },
    };
    let lengths = crate::optimise::with_spill(Routes::Lengths { spill: crate::optimise::SPILL }, load, &t);
    let t = if on(Choice::Lengths) { Techniques { routes: lengths, ..t } } else { t };
    arrange(p, &t)?;
    Ok(t)
}

/// All of the paper's techniques that the chip's pipes allow.
fn default(with: &Parameters, alpm: Alpm, p: &Profile) -> Result<Techniques, BadChoice> {
    if with.digest_bits.is_some() {
        let reason = "the paper's techniques have none; add it to --techniques";
        return Err(BadChoice::Needs { one: "--digest-bits", other: "digest", reason });
    }
    let paper = sailfish::techniques().pop().map_or(Techniques::NONE, |t| t.1);
    let bridge_bytes = with.bridge_bytes.unwrap_or(p.bridge_header_bytes);
    let all = Techniques { routes: Routes::Alpm(alpm), bridge_bytes, ..paper };
    let t = allowed(p, &all);
    if with.bridge_bytes.is_some() && !t.fold {
        let reason = "only a folded packet crosses pipes with it, and this chip cannot be folded; leave it out";
        return Err(BadChoice::Needs { one: "--bridge-bytes", other: "fold", reason });
    }
    Ok(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tofino(pipes: u32) -> Profile {
        Profile { pipes, ..crate::explain::reference().unwrap() }
    }

    fn chosen(list: &[Choice], with: Parameters) -> Result<Techniques, BadChoice> {
        choose(Some(list), &with, &tofino(4), &Load::sailfish(25))
    }

    #[test]
    fn no_technique_is_silently_left_out() {
        use Choice::*;
        let all = [Fold, SplitVni, SplitAddress, Across, PoolRoutes, PoolVms, Digest, Alpm, Lengths, Straddle];
        for bits in 0..1u32 << all.len() {
            let list: Vec<Choice> =
                all.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, c)| *c).collect();
            // What is accepted is used, each of them, and nothing else. By length both families are in one table anyway.
            let said = list.iter().filter(|c| **c != PoolRoutes || !list.contains(&Lengths)).count();
            if let Ok(t) = chosen(&list, Parameters::default()) {
                assert_eq!(t.words().len(), said.max(1), "{list:?}: {:?}", t.words());
                assert!(t.pool_routes || !list.contains(&PoolRoutes));
            }
        }
        for (pair, names) in [
            (vec![Fold, SplitVni, SplitAddress], ["split-vni", "split-address"]),
            (vec![PoolVms, Digest], ["pool-vms", "digest"]),
            (vec![Alpm, Lengths], ["alpm", "lengths"]),
            (vec![Across, Alpm], ["across", "fold"]),
            (vec![SplitVni], ["split-vni", "fold"]),
            (vec![None, Alpm], ["none", "another"]),
        ] {
            let e = chosen(&pair, Parameters::default()).unwrap_err().to_string();
            assert!(names.iter().all(|n| e.contains(n)), "{e}");
        }
    }

    #[test]
    fn parameters_want_their_technique() {
        let alpm = Parameters { alpm: Some((4096, 2)), ..Parameters::default() };
        let digest = Parameters { digest_bits: Some(16), ..Parameters::default() };
        let bridge = Parameters { bridge_bytes: Some(0), ..Parameters::default() };
        for with in [alpm, digest, bridge] {
            assert!(matches!(chosen(&[Choice::PoolRoutes], with), Err(BadChoice::Needs { .. })), "{with:?}");
        }
        let t = chosen(&[Choice::Digest, Choice::Fold], Parameters { bridge_bytes: Some(4), ..digest }).unwrap();
        assert!(matches!(t.vms, Vms::Digest { bits: 16, .. }) && t.bridge_bytes == 4);
    }

    #[test]
    fn the_default_is_what_the_pipes_allow() {
        let load = Load::sailfish(25);
        let of = |p: &Profile| choose(Option::None, &Parameters::default(), p, &load).unwrap();
        let used = |pipes| (of(&tofino(pipes)).fold, of(&tofino(pipes)).split.is_some());
        assert_eq!([2, 3, 4, 5].map(used), [(true, false), (true, false), (true, true), (true, true)]);
        let flat = Profile { loopback: false, ..tofino(4) };
        assert!(!of(&flat).fold);
        let e = choose(Some(&[Choice::Fold]), &Parameters::default(), &flat, &load).unwrap_err();
        assert!(matches!(&e, BadChoice::Profile(e) if e.field == "loopback" && e.line > 1), "{e}");
        for pipes in [2, 3] {
            let list = [Choice::Fold, Choice::SplitVni];
            let e = choose(Some(&list), &Parameters::default(), &tofino(pipes), &load).unwrap_err();
            assert!(matches!(&e, BadChoice::Profile(e) if e.field == "pipes" && e.line > 1), "{e}");
        }
    }
}

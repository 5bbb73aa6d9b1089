// SPDX-License-Identifier: Apache-2.0
//! The load of a plan: how many entries, and where each of the counts comes from.

/// Entries of the two large tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Load {
    /// Routes over IPv4.
    pub routes4: u64,
    /// Routes over IPv6.
    pub routes6: u64,
    /// VM addresses, IPv4.
    pub vms4: u64,
    /// VM addresses, IPv6.
    pub vms6: u64,
    /// VPCs.
    pub vnis: u64,
    /// Servers that host VMs.
    pub ncs: u64,
}

/// VNIs have 24 bits (RFC 7348).
const VNIS_MAX: u64 = 1 << 24;

impl Load {
    /// The entries behind Table 2 of the Sailfish paper, so many percent of them IPv6: 311% and 622% of 288 TCAM blocks
    /// are 448 blocks deep, 229,376 routes; 58% and 233% of 960 SRAM blocks at two entries a word and one in two are 560
    /// blocks deep, 1,146,880 VM addresses.
    pub fn sailfish(ipv6_percent: u64) -> Load {
        let all = Load { routes4: 229_376, routes6: 0, vms4: 1_146_880, vms6: 0, vnis: 65_536, ncs: 32_768 };
        all.mixed(ipv6_percent)
    }

    /// As many routes and addresses, so many percent of them IPv6.
    pub fn mixed(&self, ipv6_percent: u64) -> Load {
        let share = |n: u64| (n * (100 - ipv6_percent) / 100, n * ipv6_percent / 100);
        let ((routes4, routes6), (vms4, vms6)) = (share(self.routes()), share(self.vms()));
        Load { routes4, routes6, vms4, vms6, ..*self }
    }

    /// One of `n` equal parts.
    pub fn part(&self, n: u64) -> Load {
        let d = |v: u64| v.div_ceil(n);
        Load {
            routes4: d(self.routes4),
            routes6: d(self.routes6),
            vms4: d(self.vms4),
            vms6: d(self.vms6),
            vnis: d(self.vnis),
            ncs: self.ncs,
        }
    }

    /// So many hundredths of all that belongs to tenants.
    pub fn hundredths(&self, n: u64) -> Load {
        let s = |v: u64| (v * n).div_ceil(100);
        Load {
            routes4: s(self.routes4),
            routes6: s(self.routes6),
            vms4: s(self.vms4),
            vms6: s(self.vms6),
            vnis: s(self.vnis),
            ncs: self.ncs,
        }
    }

    /// Routes of both families.
    pub fn routes(&self) -> u64 {
        self.routes4 + self.routes6
    }

    /// VM addresses of both families.
    pub fn vms(&self) -> u64 {
        self.vms4 + self.vms6
    }

    /// Routes and VM addresses.
    pub fn entries(&self) -> u64 {
        self.routes() + self.vms()
    }

    /// Bits of an NC's index: 15 serve 32,768 servers, and action data has room for as many in any case.
    pub fn nc_index_bits(&self) -> u32 {
        self.ncs.max(2).next_power_of_two().ilog2().clamp(15, 32)
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = [self.routes4, self.routes6, self.vms4, self.vms6, self.vnis, self.ncs].map(thousands);
        write!(
            f,
            "{} IPv4 and {} IPv6 routes, {} IPv4 and {} IPv6 VM addresses, {} VPCs, {} servers",
            n[0], n[1], n[2], n[3], n[4], n[5]
        )
    }
}

/// A number with a comma between thousands.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let comma = |(i, c): (usize, char)| {
        let here = i > 0 && (digits.len() - i).is_multiple_of(3);
        here.then_some(',').into_iter().chain([c])
    };
    digits.chars().enumerate().flat_map(comma).collect()
}

/// Where a count comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Given for this plan.
    Given,
    /// Counted in a region's configuration.
    Region,
    /// The Sailfish paper's Table 2, or for VPCs and servers, which it does not give, our assumption beside it.
    Paper,
    /// Not given, so none.
    None,
    /// Not given, and assumed from the others.
    Assumed,
}

/// Counts as they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IPv4 routes.
    pub routes4: Option<u64>,
    /// IPv6 routes.
    pub routes6: Option<u64>,
    /// IPv4 VM addresses.
    pub vms4: Option<u64>,
    /// IPv6 VM addresses.
    pub vms6: Option<u64>,
    /// VPCs.
    pub vnis: Option<u64>,
    /// Servers.
    pub ncs: Option<u64>,
}

/// Names of the counts, as the command's options and the exported fields have them.
pub const COUNTS: [&str; 6] = ["routes4", "routes6", "vms4", "vms6", "vnis", "ncs"];

/// A load with the origin of each count.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Origin {
    /// Of [`COUNTS`], in that order.
    pub counts: [Source; 6],
    /// The same in words.
    pub says: String,
}

/// Counts that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct BadLoad {
    /// The option that gives the count, or the load.
    pub what: &'static str,
    /// What is wrong, what to do.
    pub reason: String,
}

/// Routes a VPC and VM addresses a server of the paper's load: what is assumed of a region whose VPCs and servers are not
/// counted.
fn assumed(load: &Load) -> (u64, u64) {
    let of = |n: u64, all: u64, each: u64| (n * each).div_ceil(all).max(1);
    let paper = Load::sailfish(25);
    let (by_routes, by_vms) = (of(load.routes(), paper.routes(), paper.vnis), of(load.vms(), paper.vms(), paper.vnis));
    let vnis = if load.routes() > 0 { by_routes } else { by_vms };
    (vnis.clamp(1, VNIS_MAX), of(load.vms(), paper.vms(), paper.ncs).min(load.vms()))
}

impl Counts {
    /// None was given.
    pub fn none(&self) -> bool {
        *self == Counts::default()
    }

    /// The load with where it comes from: the region's counts if there is one, else the paper's if nothing was given, else
    /// what was given. Routes and addresses that were not given are none; VPCs and servers are assumed.
    pub fn load(&self, region: Option<Load>) -> Result<(Load, Origin), BadLoad> {
        let given = [self.routes4, self.routes6, self.vms4, self.vms6, self.vnis, self.ncs];
        let (base, from) = match region {
            Some(load) => (load, [Source::Region; 6]),
            None if self.none() => (Load::sailfish(25), [Source::Paper; 6]),
            None => {
                use Source::{Assumed, None};
                let zero = Load { routes4: 0, routes6: 0, vms4: 0, vms6: 0, vnis: 0, ncs: 0 };
                (zero, [None, None, None, None, Assumed, Assumed])
            }
        };
        let or = |i: usize, base: u64| given[i].unwrap_or(base);
        let mut load = Load {
            routes4: or(0, base.routes4),
            routes6: or(1, base.routes6),
            vms4: or(2, base.vms4),
            vms6: or(3, base.vms6),
            vnis: or(4, base.vnis),
            ncs: or(5, base.ncs),
        };
        let mut counts = from;
        for (origin, _) in counts.iter_mut().zip(given).filter(|(_, g)| g.is_some()) {
            *origin = Source::Given;
        }
        let (vnis, ncs) = assumed(&load);
        if counts[4] == Source::Assumed {
            load.vnis = vnis;
        }
        if counts[5] == Source::Assumed {
            load.ncs = ncs;
        }
        check(&load)?;
        let says = says(&load, &counts);
        Ok((load, Origin { counts, says }))
    }
}

/// Refuses what cannot be.
fn check(l: &Load) -> Result<(), BadLoad> {
    let bad = |what, reason: String| Err(BadLoad { what, reason });
    if l.entries() == 0 {
        return bad(
            "the load",
            "no routes and no VM addresses: there is nothing to plan; give counts, or a region".into(),
        );
    }
    if l.vnis == 0 {
        return bad(
            "--vnis",
            format!("0 is impossible: {} routes and addresses belong to VPCs", thousands(l.entries())),
        );
    }
    if l.vnis > VNIS_MAX {
        return bad("--vnis", format!("{} are more than VNIs of 24 bits tell apart", thousands(l.vnis)));
    }
    if l.ncs == 0 && l.vms() > 0 {
        return bad("--ncs", format!("0 is impossible: {} VM addresses are on servers", thousands(l.vms())));
    }
    if l.ncs > l.vms() {
        let (ncs, vms) = (thousands(l.ncs), thousands(l.vms()));
        return bad("--ncs", format!("{ncs} servers that host VMs cannot be more than the {vms} VM addresses"));
    }
    Ok(())
}

fn says(l: &Load, counts: &[Source; 6]) -> String {
    let values = [l.routes4, l.routes6, l.vms4, l.vms6, l.vnis, l.ncs];
    let of = |from: Source| {
        let here = COUNTS.iter().zip(counts).zip(values).filter(|((_, f), _)| **f == from);
        here.map(|((name, _), n)| format!("{name} {}", thousands(n))).collect::<Vec<_>>().join(", ")
    };
    let mut out = Vec::new();
    for (from, words) in [
        (Source::Given, "given"),
        (Source::Region, "counted in the region"),
        (Source::Paper, "no counts given, so those of the Sailfish paper (Table 2 at 25% IPv6; VPCs and servers are our assumption)"),
        (Source::None, "not given, so none"),
        (Source::Assumed, "not given, so assumed as in the paper's load (3.5 routes or 17.5 addresses a VPC, 35 addresses a server)"),
    ] {
        if counts.contains(&from) {
            out.push(format!("{words}: {}", of(from)));
        }
    }
    out.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_is_said() {
        let (load, origin) = Counts::default().load(None).unwrap();
        assert_eq!((load, origin.counts), (Load::sailfish(25), [Source::Paper; 6]));
        let counts = Counts { routes4: Some(1_000_000), vms4: Some(70), ..Counts::default() };
        let (load, origin) = counts.load(None).unwrap();
        assert_eq!(
            (load.routes6, load.vms6, load.vnis, load.ncs),
            (0, 0, 285_715, 2),
            "nothing of the paper's is mixed in"
        );
        for part in ["given: routes4 1,000,000, vms4 70", "so none: routes6 0, vms6 0", "vnis 285,715, ncs 2"] {
            assert!(origin.says.contains(part), "{}", origin.says);
        }
        let region = Load { routes4: 5, routes6: 0, vms4: 9, vms6: 0, vnis: 2, ncs: 3 };
        let (load, origin) = Counts { vms6: Some(4), ..Counts::default() }.load(Some(region)).unwrap();
        assert_eq!(load, Load { vms6: 4, ..region });
        assert_eq!((origin.counts[3], origin.counts[2]), (Source::Given, Source::Region));
    }

    #[test]
    fn impossible_counts_are_refused_by_name() {
        let paper = Load::sailfish(25);
        for (counts, name, reason) in [
            (Counts { vnis: Some(0), ..Counts::default() }, "vnis", "belong to VPCs"),
            (Counts { ncs: Some(0), ..Counts::default() }, "ncs", "on servers"),
            (Counts { ncs: Some(2_000_000), ..Counts::default() }, "ncs", "cannot be more"),
            (Counts { vnis: Some(1 << 25), ..Counts::default() }, "vnis", "24 bits"),
        ] {
            let e = counts.load(Some(paper)).unwrap_err();
            assert!(e.what == format!("--{name}") && e.reason.contains(reason), "{e}");
        }
        let nothing = Counts { vnis: Some(7), ..Counts::default() }.load(None).unwrap_err();
        assert!(nothing.reason.contains("nothing to plan"), "{nothing}");
    }

    #[test]
    fn thousands_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Which routes of a namespace's kernel become routes of its VPC. No I/O.

use super::netlink::KernelRoute;
use abi::{special4, special6, DropReason, Prefix};
use model::Scope;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Why a route is not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It is the default route, and the circuit may not learn one.
    Default,
    /// Its addresses are never forwarded.
    Martian,
    /// It lies where the VPC's own VMs are.
    Own,
    /// It lies where a peer's VMs are.
    Peer,
    /// The circuit has as many as it may.
    Limit,
}

impl Refusal {
    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Default => "default_route",
            Refusal::Martian => "martian",
            Refusal::Own => "own_vms",
            Refusal::Peer => "peer_vpc",
            Refusal::Limit => "limit",
        }
    }
}

/// A circuit, as far as learning goes.
#[derive(Debug)]
pub struct Circuit<'a> {
    /// Number of its line.
    pub line: u8,
    /// Number of its TAP in the namespace.
    pub interface: u32,
    /// Frames can leave by its port.
    pub up: bool,
    /// Routes at most.
    pub limit: u32,
    /// One of them may be the default route.
    pub default: bool,
    /// What it had learned before: that stays when there is more than may be.
    pub had: &'a BTreeSet<Prefix>,
}

/// What one circuit offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Prefixes that it may lead to.
    pub taken: BTreeSet<Prefix>,
    /// Prefixes that it may not, by why.
    pub refused: BTreeMap<Refusal, u64>,
}

/// A route that was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The line that it leads to.
    pub line: u8,
    /// Its metric in the kernel.
    pub metric: u32,
    /// Who entered it there.
    pub protocol: u8,
}

/// Whether a VPC may learn a prefix; `route` is what it has configured.
pub fn may_learn(prefix: Prefix, default: bool, route: impl Fn(Prefix) -> Option<Scope<abi::Vni>>) -> Result<(), Refusal> {
    if prefix.prefix_len() == 0 {
        return if default { Ok(()) } else { Err(Refusal::Default) };
    }
    if [prefix.network(), prefix.broadcast()].into_iter().any(never_forwarded) {
        return Err(Refusal::Martian);
    }
    // The longest configured route around it says whose it is.
    let around = (0..=prefix.prefix_len()).rev().filter_map(|len| Prefix::new(prefix.addr(), len).ok());
    match around.map(|p| p.trunc()).find_map(route) {
        Some(Scope::Local) => Err(Refusal::Own),
        Some(Scope::Peer(_)) => Err(Refusal::Peer),
        _ => Ok(()),
    }
}

fn never_forwarded(address: IpAddr) -> bool {
    let why = match address {
        IpAddr::V4(a) if a.to_bits() >= 0xe000_0000 => return true,
        IpAddr::V4(a) => special4(a.to_bits(), false),
        IpAddr::V6(a) if a.octets()[0] == 0xff => return true,
        IpAddr::V6(a) => special6((a.to_bits() >> 64) as u64, a.to_bits() as u64, false),
    };
    why.is_some_and(|why| why != DropReason::InnerDocumentation)
}

/// What each circuit of a namespace offers, and of each prefix the best: the lowest metric, then the lowest line. Of a circuit whose port is
/// down nothing is used.
pub fn learn(
    routes: &[KernelRoute],
    circuits: &[Circuit<'_>],
    route: impl Fn(Prefix) -> Option<Scope<abi::Vni>>,
) -> (Vec<Offer>, BTreeMap<Prefix, Learned>) {
    let mut offers = Vec::new();
    let mut best: BTreeMap<Prefix, Learned> = BTreeMap::new();
    for c in circuits {
        let mut offer = Offer::default();
        let mut lowest: BTreeMap<Prefix, &KernelRoute> = BTreeMap::new();
        for r in routes.iter().filter(|r| r.interfaces.contains(&c.interface)) {
            let has = lowest.entry(r.prefix).or_insert(r);
            if r.metric < has.metric {
                *has = r;
            }
        }
        let mut allowed = Vec::new();
        for (prefix, r) in &lowest {
            match may_learn(*prefix, c.default, &route) {
                Ok(()) => allowed.push(*r),
                Err(why) => *offer.refused.entry(why).or_default() += 1,
            }
        }
        // Those that it had come first, so that the limit takes away none of them.
        allowed.sort_by_key(|r| !c.had.contains(&r.prefix));
        let over = allowed.len().saturating_sub(c.limit as usize);
        if over > 0 {
            offer.refused.insert(Refusal::Limit, over as u64);
            allowed.truncate(c.limit as usize);
        }
        offer.taken = allowed.iter().map(|r| r.prefix).collect();
        for r in allowed.iter().filter(|_| c.up) {
            let new = Learned { line: c.line, metric: r.metric, protocol: r.protocol };
            let old = best.entry(r.prefix).or_insert(new);
            if (new.metric, new.line) < (old.metric, old.line) {
                *old = new;
            }
        }
        offers.push(offer);
    }
    (offers, best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Vni;

    fn p(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn kernel(prefix: &str, metric: u32, interfaces: &[u32]) -> KernelRoute {
        KernelRoute { prefix: p(prefix), metric, protocol: 186, interfaces: interfaces.to_vec() }
    }

    fn circuit(line: u8, up: bool, limit: u32, had: &BTreeSet<Prefix>) -> Circuit<'_> {
        Circuit { line, interface: 10 + u32::from(line), up, limit, default: false, had }
    }

    /// A VPC with VMs, a peer, a site inside of what is its own, and a black hole.
    fn configured(prefix: Prefix) -> Option<Scope<Vni>> {
        let of = [
            ("10.0.0.0/16", Scope::Local),
            ("10.0.9.0/24", Scope::Line(0)),
            ("10.1.0.0/16", Scope::Peer(Vni(8))),
            ("10.66.0.0/16", Scope::Blackhole),
            ("fd00::/64", Scope::Local),
            ("0.0.0.0/0", Scope::Internet),
        ];
        of.into_iter().find(|(q, _)| p(q) == prefix).map(|(_, scope)| scope)
    }

    #[test]
    fn what_is_somebody_elses_or_nobodys_is_not_learned() {
        let may = |text: &str, default| may_learn(p(text), default, configured);
        for text in ["10.9.0.0/24", "10.0.9.128/25", "10.0.0.0/8", "203.0.113.0/24", "10.66.1.0/24", "fd09::/48", "2001:db8:9::/48"] {
            assert_eq!(may(text, false), Ok(()), "{text}");
        }
        for (text, why) in [
            ("0.0.0.0/0", Refusal::Default),
            ("::/0", Refusal::Default),
            ("127.0.0.0/8", Refusal::Martian),
            ("127.1.2.3/32", Refusal::Martian),
            ("169.254.0.0/16", Refusal::Martian),
            ("224.0.0.0/4", Refusal::Martian),
            ("255.255.255.255/32", Refusal::Martian),
            ("128.0.0.0/1", Refusal::Martian),
            ("fe80::/10", Refusal::Martian),
            ("ff00::/8", Refusal::Martian),
            ("10.0.0.0/16", Refusal::Own),
            ("10.0.0.11/32", Refusal::Own),
            ("fd00::1/128", Refusal::Own),
            ("10.1.7.0/24", Refusal::Peer),
        ] {
            assert_eq!(may(text, false), Err(why), "{text}");
        }
        assert_eq!((may("0.0.0.0/0", true), may("::/0", true)), (Ok(()), Ok(())));
    }

    #[test]
    fn the_lowest_metric_wins_then_the_lowest_line_and_a_port_that_is_down_is_not_used() {
        let none = BTreeSet::new();
        let routes = [
            kernel("10.9.0.0/24", 20, &[11]),
            kernel("10.9.0.0/24", 10, &[12]),
            kernel("10.8.0.0/24", 20, &[11, 10]),
            kernel("10.7.0.0/24", 20, &[99]),
        ];
        let best = |up: [bool; 3]| {
            let circuits: Vec<_> = (0..3).map(|i| circuit(i, up[usize::from(i)], 9, &none)).collect();
            let best = learn(&routes, &circuits, |_| None).1;
            best.into_iter().map(|(prefix, l)| (prefix.to_string(), l.line, l.metric)).collect::<Vec<_>>()
        };
        let of = |prefix: &str, line, metric| (prefix.to_string(), line, metric);
        assert_eq!(best([true; 3]), [of("10.8.0.0/24", 0, 20), of("10.9.0.0/24", 2, 10)]);
        assert_eq!(best([false, true, false]), [of("10.8.0.0/24", 1, 20), of("10.9.0.0/24", 1, 20)]);
        assert_eq!(best([false; 3]), []);
    }

    #[test]
    fn beyond_the_limit_none_is_learned_and_none_is_lost() {
        let had: BTreeSet<Prefix> = [p("10.9.7.0/24"), p("10.9.8.0/24")].into();
        let routes: Vec<_> = (0..9).map(|i| kernel(&format!("10.9.{i}.0/24"), 20, &[10])).collect();
        let (offers, best) = learn(&routes, &[circuit(0, true, 3, &had)], |_| None);
        let learned: Vec<String> = best.keys().map(|p| p.to_string()).collect();
        assert_eq!(learned, ["10.9.0.0/24", "10.9.7.0/24", "10.9.8.0/24"], "what it had, and one more");
        assert_eq!(offers[0].refused, [(Refusal::Limit, 6)].into());
        // What may not be learned takes no place.
        let more = [&routes[..2], &[kernel("10.0.0.11/32", 1, &[10]), kernel("127.0.0.0/8", 1, &[10])]].concat();
        let (offers, best) = learn(&more, &[circuit(0, true, 2, &had)], configured);
        assert_eq!((best.len(), &offers[0].refused), (2, &[(Refusal::Martian, 1), (Refusal::Own, 1)].into()));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! What a translator that begins takes from the sessions in memory.

use crate::conntrack::binding;
use conntrack::{Cursor, EndReason, Owner, SessionInfo};
use gateway::Connections;
use std::net::IpAddr;
use tables::PublicPrefix;

/// Records that are looked at in one go.
const PIECE: u32 = 65_536;

/// Public addresses as numbers: ranges in order that do not meet. IPv4 as it is mapped into IPv6.
pub(crate) struct Ours(Vec<(u128, u128)>);

fn number(a: IpAddr) -> u128 {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

impl Ours {
    /// Those of a plan, which the tables may not have been told yet.
    pub(crate) fn new(public: &[PublicPrefix]) -> Ours {
        let range = |p: &PublicPrefix| {
            let len = u32::from(p.prefix.prefix_len()) + if p.prefix.addr().is_ipv4() { 96 } else { 0 };
            let first = number(p.prefix.addr());
            (first, first | u128::MAX.checked_shr(len).unwrap_or(0))
        };
        let mut all: Vec<_> = public.iter().map(range).collect();
        all.sort_unstable();
        all.dedup_by(|next, kept| {
            let meets = next.0 <= kept.1;
            kept.1 = if meets { kept.1.max(next.1) } else { kept.1 };
            meets
        });
        Ours(all)
    }

    fn contains(&self, a: IpAddr) -> bool {
        let a = number(a);
        let after = self.0.partition_point(|(first, _)| *first <= a);
        self.0[..after].last().is_some_and(|(_, last)| a <= *last)
    }
}

/// Gives the translator what the sessions in memory hold; those for which it has no place end. Returns how many. With public
/// addresses, sessions to these are told to the tracker as hairpins: their packets would, but not before the next one. A copy for a
/// trace needs none of that.
pub(crate) fn restore(nat: &Connections, ours: Option<&Ours>, now: u64) -> u64 {
    let (mut lost, mut at) = (0, Some(Cursor::default()));
    while let Some(from) = at {
        let mut hairpins = Vec::new();
        let mut ends = |s: &SessionInfo| {
            let torn = s.owner != Owner::Filter && !nat.nat().translator().restore(&binding(s));
            lost += u64::from(torn);
            if !torn && s.owner != Owner::Filter && ours.is_some_and(|ours| ours.contains(s.inner.remote())) {
                hairpins.push(s.inner);
            }
            torn.then_some(EndReason::Untranslated)
        };
        at = nat.remove_where(from, PIECE, &mut ends, now);
        for inner in hairpins {
            let session = nat.tracker().find_inner(&inner);
            session.into_iter().for_each(|session| nat.tracker().exclude_from_offload(session, &inner));
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use tables::Prefix;

    #[test]
    fn an_address_is_ours_if_a_prefix_has_it() {
        let public = |list: &[(&str, u8)]| {
            let one = |(a, len): &(&str, u8)| PublicPrefix {
                prefix: Prefix::new_assert(a.parse().unwrap(), *len),
                accepts: false,
            };
            Ours::new(&list.iter().map(one).collect::<Vec<_>>())
        };
        let ours = public(&[
            ("2001:db8:7::", 48),
            ("203.0.113.8", 29),
            ("203.0.113.9", 32),
            ("203.0.113.0", 30),
            ("198.51.100.1", 32),
        ]);
        let has = |a: &str| ours.contains(a.parse().unwrap());
        for a in [
            "203.0.113.0",
            "203.0.113.3",
            "203.0.113.8",
            "203.0.113.9",
            "203.0.113.15",
            "198.51.100.1",
            "2001:db8:7::",
            "2001:db8:7:ffff::1",
        ] {
            assert!(has(a), "{a}");
        }
        for a in [
            "203.0.113.4",
            "203.0.113.7",
            "203.0.113.16",
            "198.51.100.0",
            "198.51.100.2",
            "0.0.0.0",
            "2001:db8:6:ffff::",
            "2001:db8:8::",
            "::",
        ] {
            assert!(!has(a), "{a}");
        }
        assert!(!public(&[]).contains("10.0.0.1".parse().unwrap()));
        assert!(
            public(&[("::", 0)]).contains("10.0.0.1".parse().unwrap())
                && public(&[("0.0.0.0", 0)]).contains("255.255.255.255".parse().unwrap())
        );
    }
}

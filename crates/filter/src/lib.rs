// SPDX-License-Identifier: Apache-2.0
//! Security groups: which connections may begin.
//!
//! # What it is
//! A group is a list of rules; members (single addresses and prefixes of a VPC) refer to groups. A connection from a to b may
//! begin if the groups of a allow it outwards and those of b allow it inwards. Who has no group allows everything. Of the
//! rules that match, the one with the lowest priority number decides, deny before allow where they are equal, then the
//! earlier one; of several groups the same. What no rule matches is denied. The verdict lives in the session (crate
//! `conntrack`), so rules are asked once a connection, and again when they change.
//!
//! # How rules lie in memory
//! A rule is a rectangle: remote addresses × services, where a service is one number (protocol, then port or ICMP type and
//! code), so that every rule has one range of them. Each direction of a group, for each family, is four flat arrays without
//! pointers: where the intervals of addresses begin, which prefix is the longest in each, the prefixes with their next shorter
//! ones, and for each prefix its intervals of services with the best rule of each. A lookup is a binary search for the address
//! and one for the service in each prefix that covers it, shortest ones left out as soon as they hold nothing better. This takes
//! memory in proportion to the rules, whatever they are (`docs/design/filter.md` has what it beat).
//!
//! # Who writes
//! Nobody: a [`Filter`] never changes but for its counters. A change builds another one, which shares every group and every VPC
//! that is as it was. No I/O, no clock.
#![forbid(unsafe_code)]

mod compile;
mod group;
mod judge;
pub mod oracle;
mod pattern;
mod rule;
mod ruleset;
#[cfg(test)]
mod tests;

pub use abi::Prefix;
pub use group::Group;
pub use judge::{Deny, Filter, Member, Side, Verdict, UNKNOWN_PROTOCOLS};
pub use pattern::Pattern;
pub use rule::{
    icmp_service, parse_addresses, service, services, Fault, GroupSpec, Remote, Rule, RuleDirection, GROUPS_OF_MEMBER,
    GROUP_RULES_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, RULES_MAX, SERVICE_MAX,
};
pub use ruleset::{edits, Edit, Ruleset};

// SPDX-License-Identifier: Apache-2.0
//! Which cluster of a region serves which tenant (Sailfish §4.3: tables are split over clusters by VNI).
//!
//! What is placed is a *unit*: a VPC together with those that it is peered with, directly or over others. A packet from one of them to another is judged at both
//! ends, and its connection has one session; both directions must meet the same tables, so peered VPCs lie together ([`peers`]). A unit needs
//! [`Amounts`] of the region's resources, entries of each table, sessions and traffic, and a cluster has a capacity of each ([`capacity`]).
//!
//! # The property
//! A [`Region`] is what is, and everything in it is asked for one by one: a tenant comes, grows, reserves, goes. None of these moves another tenant.
//! Tenants move only by a [`Plan`], which somebody asks for: rebalance, fill a new cluster, drain one, relieve what is too full, join what is to be peered. The same
//! region and the same request give the same plan, and whoever carries it out in its order never has a cluster over its `full` level, although during a
//! move both clusters hold the unit.
//!
//! # Why so
//! A cluster is chosen where the newcomer adds least to the unevenness of all water levels together (vector scheduling): so entries, sessions and traffic stay even
//! at once without a weight that somebody would have to set. Hashing needs no memory of where a tenant is, but knows nothing of sizes: with heavy-tailed tenants
//! its fullest cluster is a third fuller than the mean. Solving it anew for each change is even, but moves everybody. `docs/design/placement.md` has figures.
//!
//! # What it costs
//! A newcomer costs a look at each cluster. A plan lists all units a few times: a region of a million units takes about a second, and some 500 bytes a unit
//! while it is made.
//!
//! No clock, no randomness: [`Region::set_time`] says what time it is, ties go to the smaller number.

mod amounts;
mod board;
mod change;
mod cluster;
mod exact;
mod order;
pub mod peers;
mod refusal;
mod region;
mod review;
mod spread;
#[cfg(test)]
mod tests;

pub use amounts::{Amounts, Resource, RESOURCES};
pub use change::{Change, Move, Plan};
pub use cluster::{capacity, Engine, Levels, Node, Raised, REOPEN};
pub use refusal::{Names, Numbers, Refusal, Remedy};
pub use region::{share, Evenness, Region, Usage};
pub use review::{Event, Proposal};

/// Number of a unit. The caller knows its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct UnitId(pub u32);

/// Number of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct ClusterId(pub u32);

/// Seconds since whenever the caller likes.
pub type Time = u64;

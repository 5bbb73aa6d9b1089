// SPDX-License-Identifier: Apache-2.0

use super::{Described, Name};
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use crate::resource::Resource;
use crate::time::Timestamp;
use std::fmt;
use std::str::FromStr;

const RAISED: &str = "up to 64 of the form `RESOURCES close N% full N% from TIME until TIME`";

/// Seconds for which a tenant's old cluster serves its sessions where a Region says nothing else.
pub const DRAIN_S: u32 = 3600;

fields! {
    /// The whole that a controller looks after, of which there is one. A kind of the controller: a node takes none.
    pub kind Region {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Limits of the whole. Those of a node are its Gateway's.
        limits: RegionLimits = "spec.limits", part();
        /// Shares of what clusters can hold at which placement does something.
        levels: WaterLevels = "spec.waterLevels", part();
        /// Levels that are higher for a planned time, as a festival. RESOURCES: `vpcs`, `routes`, `vms`, `rules`, `sessions`, `traffic`, with commas between them, or `all`. A level that is higher anyway stays. TIME as in RFC 3339. Meanwhile another cluster is proposed later by as much as `close` is higher.
        raised: Vec<RaisedLevels> = "spec.raised", raised().list(64, RAISED);
        /// Seconds for which a cluster that a tenant has left goes on serving its sessions, which the new one hands their packets to. Those that have not ended then break.
        drain: u32 = "spec.drain", int(3, 604_800).or(DRAIN_S);
    }
}

fields! {
    /// How many objects of each kind a region takes.
    #[derive(Copy)]
    pub struct RegionLimits {
        /// VPCs at most. A change that would pass a limit is refused.
        vpcs: u32 = "vpcs", int(1, 1 << 24).or(1 << 24);
        /// Routes of all VPCs at most.
        routes: u32 = "routes", int(1, 1 << 30).or(1 << 27);
        /// VMs of all VPCs at most.
        vms: u32 = "vms", int(1, 1 << 30).or(1 << 27);
        /// NCs at most.
        ncs: u32 = "ncs", int(1, 1 << 24).or(1 << 20);
    }
}

fields! {
    /// Water levels, in percent of what a cluster can hold.
    #[derive(Copy)]
    pub struct WaterLevels {
        /// Percent of any resource above which a cluster takes no new Tenant. It takes them again at 3 percent less.
        close: u8 = "close", int(1, 100).or(70);
        /// Percent that no move may exceed, and above which a cluster is relieved.
        full: u8 = "full", int(1, 100).or(90);
        /// Percent of all clusters together above which another cluster is proposed.
        propose: u8 = "propose", int(1, 100).or(60);
        /// Percent that the proposed cluster brings all of them down to.
        aim: u8 = "aim", int(1, 100).or(50);
    }
}

/// Water levels raised for a planned time (Sailfish §6.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RaisedLevels {
    /// Of what, each once.
    pub resources: Vec<Resource>,
    /// Percent at which a cluster takes no new Tenant meanwhile.
    pub close: u8,
    /// Percent that no move may exceed meanwhile.
    pub full: u8,
    /// From when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
}

const fn raised() -> Text<RaisedLevels> {
    parsed("raised levels", "")
}

impl FromStr for RaisedLevels {
    type Err = String;

    fn from_str(s: &str) -> Result<RaisedLevels, String> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let [resources, "close", close, "full", full, "from", from, "until", until] = words[..] else {
            return Err(format!("`{}` is not `RESOURCES close N% full N% from TIME until TIME`", crate::plain(s)));
        };
        let resources = match resources {
            "all" => Resource::ALL.to_vec(),
            some => some.split(',').map(resource).collect::<Result<_, _>>()?,
        };
        if let Some(twice) = (1..resources.len()).find(|i| resources[..*i].contains(&resources[*i])) {
            return Err(format!("`{}` is named twice", resources[twice]));
        }
        let (close, full) = (percent(close)?, percent(full)?);
        let (from, until): (Timestamp, Timestamp) = (from.parse()?, until.parse()?);
        if close > full {
            return Err(format!("close, {close}%, is above full, {full}%"));
        }
        if from >= until {
            return Err(format!("it ends at {until}, which is not after {from}"));
        }
        Ok(RaisedLevels { resources, close, full, from, until })
    }
}

impl fmt::Display for RaisedLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.resources.iter().map(|r| r.name()).collect();
        let names = if self.resources == Resource::ALL { "all".into() } else { names.join(",") };
        let RaisedLevels { close, full, from, until, .. } = self;
        write!(f, "{names} close {close}% full {full}% from {from} until {until}")
    }
}

fn resource(name: &str) -> Result<Resource, String> {
    let known = Resource::ALL.map(Resource::name).join(", ");
    Resource::named(name).ok_or_else(|| format!("`{}` is no resource: {known}, or `all`", crate::plain(name)))
}

fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').and_then(|n| n.parse().ok());
    number.filter(|n| (1..=100).contains(n)).ok_or_else(|| format!("`{}` is not 1% to 100%", crate::plain(text)))
}

impl Described for Region {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        let RegionLimits { vpcs, routes, vms, ncs } = self.limits;
        format!("at most {vpcs} VPCs, {routes} routes, {vms} VMs, {ncs} NCs")
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Region> {
        let WaterLevels { close, full, propose, aim } = self.levels;
        let ordered =
            [("close", close, "full", full), ("propose", propose, "close", close), ("aim", aim, "propose", propose)];
        for (low, value, high, most) in ordered {
            let (path, above) = (format!("spec.waterLevels.{low}"), format!("spec.waterLevels.{high}"));
            if value <= most || doc.is_wrong(&path) || doc.is_wrong(&above) {
                continue;
            }
            // The one that is written, where the other goes without saying.
            let written = if doc.node(&path).is_some() { &path } else { &above };
            let problem = Problem::Value(format!("{low}, {value}, is above {high}, {most}"));
            doc.error(doc.place_of(written), written, problem, "aim <= propose <= close <= full".into());
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_levels_are_read_as_they_are_shown() {
        let read = |s: &str| s.parse::<RaisedLevels>().map(|r| r.to_string());
        let times = "from 2026-11-11T00:00:00Z until 2026-11-12T00:00:00Z";
        let line = format!("vms,traffic close 85% full 95% {times}");
        assert_eq!(read(&line), Ok(line.clone()));
        let all = format!("vpcs,routes,vms,rules,sessions,traffic close 85% full 85% {times}");
        assert_eq!(read(&all), Ok(format!("all close 85% full 85% {times}")));
        for (wrong, why) in [
            ("vms close 85%".into(), "is not `RESOURCES close"),
            (line.replace("vms", "memory"), "`memory` is no resource: vpcs, routes"),
            (line.replace("traffic", "vms"), "named twice"),
            (line.replace("85%", "85"), "`85` is not 1% to 100%"),
            (line.replace("85%", "96%"), "close, 96%, is above full, 95%"),
            (line.replace("12T", "11T"), "which is not after"),
            (line.replace("11-12", "13-12"), "is no time"),
        ] {
            assert!(read(&wrong).is_err_and(|e| e.contains(why)), "{wrong}: {:?}", read(&wrong));
        }
    }
}

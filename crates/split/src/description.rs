// SPDX-License-Identifier: Apache-2.0
//! What is described: traffic, the stages it passes, the targets that could run them, the links between these, and what is
//! wanted.
//!
//! Numbers are in base units: nanoseconds, bytes, bits a second, packets a second, dollars, shares of one.

use crate::hot::Hot;
use std::collections::BTreeMap;

/// All of it.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// What is wanted.
    pub goal: Goal,
    /// Kinds of packets, by the path that they take.
    pub classes: Vec<Class>,
    /// Stages.
    pub stages: Vec<Stage>,
    /// Targets.
    pub targets: Vec<Target>,
    /// Links between targets.
    pub links: Vec<Link>,
}

/// What is wanted: the demand carried, or without one as much as can be; then the least cost; then the least latency.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Packets a second that are to be carried.
    pub demand: Option<f64>,
    /// The share of a rate that is used in normal operation.
    pub water: f64,
    /// What a copy of entries in a second place must gain to be worth its upkeep, as a share.
    pub worth: f64,
}

/// Packets that take one path.
#[derive(Clone, Debug)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Share of all packets.
    pub share: f64,
    /// Bytes of a packet as it comes in.
    pub bytes: f64,
    /// The target whose ports it comes in by.
    pub enters: usize,
    /// The target whose ports it leaves by.
    pub leaves: usize,
    /// Its stages, in order.
    pub path: Vec<usize>,
}

/// A stage.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Operations that it needs, and how many of each for a packet.
    pub needs: Vec<(String, f64)>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Bytes by which a packet is longer behind it.
    pub adds: f64,
    /// Bytes that it hands to the next stage beside the packet.
    pub hands: f64,
    /// How often a year its logic changes.
    pub revisions: f64,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// What memory must be able to hold it: exact, lpm, ternary, tunnel and so on.
    pub kind: String,
    /// Bits of each field of the key.
    pub key: Vec<u32>,
    /// Bits of what is found.
    pub value: u32,
    /// Entries.
    pub entries: f64,
    /// Changes a second from outside.
    pub changes: f64,
    /// Changes that a packet of the stage makes: 0.01 if each hundredth one does.
    pub writes: f64,
    /// Reads for a packet that wait for each other.
    pub reads: f64,
    /// Which of its entries packets use; None: it is not cached.
    pub hot: Option<Hot>,
}

/// Something that can run stages.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// How many there are at most.
    pub count: f64,
    /// Price of one.
    pub dollars: f64,
    /// Cores: a packet takes their time. None: a pipeline, whose stages take no time from each other.
    pub cores: Option<f64>,
    /// Time of a core, and of the packet, that a visit takes whatever is done there.
    pub packet: f64,
    /// Time of one read, by the bytes of the table: points in ascending order.
    pub lookup: Vec<(f64, f64)>,
    /// Visits a second.
    pub packets: Option<f64>,
    /// Bits a second that its ports to the outside take, each direction.
    pub ports: Option<f64>,
    /// Time that a visit adds to what the packet takes, but no core is busy for.
    pub latency: f64,
    /// Changes of tables a second.
    pub changes: Option<f64>,
    /// How often a year its logic can be changed.
    pub revisions: Option<f64>,
    /// What it can do.
    pub operations: BTreeMap<String, Operation>,
    /// Its memory.
    pub memory: Vec<Pool>,
}

/// An operation of a target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operation {
    /// Time of one.
    pub time: f64,
    /// How many of it a packet may need in a stage.
    pub most: Option<f64>,
}

/// A part of a target's memory.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Kinds of tables that it holds.
    pub holds: Vec<String>,
    /// How much it has.
    pub room: f64,
    /// What an entry takes of it.
    pub unit: Unit,
}

/// What memory is counted in.
#[derive(Clone, Debug)]
pub enum Unit {
    /// Bytes; an entry takes whole lines of so many.
    Bytes(f64),
    /// Entries.
    Entries,
    /// Blocks of a switch chip, by its own arithmetic.
    Blocks(Box<Blocks>),
}

/// Blocks of a chip.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// The chip's stage.
    pub geometry: chip::Geometry,
    /// TCAM; else SRAM.
    pub tcam: bool,
    /// Parts of the chip that hold different entries.
    pub halves: f64,
}

/// A link between two targets, the same in both directions.
#[derive(Clone, Debug)]
pub struct Link {
    /// One end.
    pub from: usize,
    /// The other end.
    pub to: usize,
    /// Bits a second, each direction.
    pub bits: Option<f64>,
    /// Packets a second, each direction.
    pub packets: Option<f64>,
    /// Time.
    pub latency: f64,
    /// Bytes at most that can be handed over beside a packet.
    pub metadata: f64,
    /// Bytes of a packet that cross at most: the rest waits on the side that it came from.
    pub slice: Option<f64>,
    /// The target of which each instance has such a link; None: there is one.
    pub per: Option<usize>,
}

impl Link {
    /// Its name.
    pub fn name(&self, d: &Description) -> String {
        format!("{}-{}", d.targets[self.from].name, d.targets[self.to].name)
    }
}

impl Description {
    /// Mean bytes of a packet as it comes in.
    pub fn mean_bytes(&self) -> f64 {
        self.classes.iter().map(|c| c.share * c.bytes).sum()
    }

    /// The share of packets that pass a stage.
    pub fn share_of(&self, stage: usize) -> f64 {
        let passes = |c: &&Class| c.path.contains(&stage);
        self.classes.iter().filter(passes).map(|c| c.share).sum()
    }
}

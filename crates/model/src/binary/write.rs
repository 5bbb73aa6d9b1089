// SPDX-License-Identifier: Apache-2.0
//! A model as a snapshot: NCs, VPCs and peerings in the order of their names, then the routes and VMs of each VPC in
//! order, so that a reader can build its ordered maps without sorting.

use super::codec::*;
use super::frame::{file_head, put_frame};
use super::objects::{put_addresses, put_document, put_optional_meter, put_vpc};
use super::SnapshotError;
use crate::kinds::Kind;
use crate::labels::put_labels;
use crate::model::{Model, RouteState, Target, VmState, VpcState};
use crate::prefix::{Mac, Prefix};
use std::io::Write;
use std::path::Path;

/// First bytes of a snapshot.
pub(crate) const SNAPSHOT_MARK: &[u8; 8] = b"TUNNYsnp";

/// First byte of a frame's payload.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Part {
    /// Labels of NCs and peerings, of which there is no place in their own parts.
    Labels = 0,
    Documents = 1,
    Ncs = 2,
    Vpcs = 3,
    Peerings = 4,
    Listings = 5,
    Bodies = 6,
    End = 7,
}

/// A frame is closed when it has this many bytes.
const FRAME_AIM: usize = 256 << 10;
/// Routes, and VMs, of a VPC in one record at most; a larger VPC has several.
pub(super) const PIECE: usize = 4096;

pub(super) const ROUTE_NAMED: u8 = 1 << 4;
pub(super) const ROUTE_LABELLED: u8 = 1 << 5;
pub(super) const VM_NAMED: u8 = 1 << 7;
pub(super) const VM_METERED: u8 = 1 << 6;
pub(super) const VM_LABELLED: u8 = 1 << 5;
pub(super) const VM_SHAPED: u8 = 1 << 4;

/// Writes frames of one part after another.
struct Frames<'a> {
    out: &'a mut dyn Write,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl Frames<'_> {
    fn begin(&mut self, part: Part) {
        self.payload.clear();
        self.payload.push(part as u8);
    }

    /// Closes the frame if it is full.
    fn step(&mut self, part: Part) -> std::io::Result<()> {
        if self.payload.len() >= FRAME_AIM {
            self.end()?;
            self.begin(part);
        }
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        if self.payload.len() > 1 {
            self.frame.clear();
            put_frame(&mut self.frame, &self.payload);
            self.out.write_all(&self.frame)?;
        }
        Ok(())
    }
}

impl Model {
    /// Writes the whole model as a binary snapshot. `number` is kept in its head (the store's number of the last change).
    pub fn write_snapshot(&self, out: &mut dyn Write, number: u64) -> std::io::Result<()> {
        out.write_all(&file_head(SNAPSHOT_MARK, number))?;
        let mut f = Frames { out, payload: Vec::new(), frame: Vec::new() };
        f.begin(Part::Labels);
        let ncs = self.nc_names.iter().map(|(name, id)| (Kind::Nc, name, &self.nc(*id).labels));
        let peerings = self.peerings.iter().map(|(name, p)| (Kind::Peering, name, &p.labels));
        for (kind, name, labels) in ncs.chain(peerings).filter(|(.., labels)| !labels.is_empty()) {
            f.payload.push(kind as u8);
            put_text(&mut f.payload, name);
            put_labels(&mut f.payload, labels);
            f.step(Part::Labels)?;
        }
        f.end()?;
        f.begin(Part::Documents);
        for object in [Kind::Gateway].into_iter().chain(Kind::BY_NAME.iter().copied()).flat_map(|k| self.objects(k)) {
            put_document(&mut f.payload, &object);
            f.step(Part::Documents)?;
        }
        f.end()?;
        f.begin(Part::Ncs);
        for (name, id) in &self.nc_names {
            put_text(&mut f.payload, name);
            put_address(&mut f.payload, self.nc(*id).address);
            f.step(Part::Ncs)?;
        }
        f.end()?;
        f.begin(Part::Vpcs);
        for id in self.vpc_names.values() {
            put_vpc(&mut f.payload, &self.vpc(*id).spec);
            f.step(Part::Vpcs)?;
        }
        f.end()?;
        let order = Order::new(self);
        f.begin(Part::Peerings);
        for (name, peering) in &self.peerings {
            put_text(&mut f.payload, name);
            peering.pair.iter().for_each(|v| put_u64(&mut f.payload, order.vpc(*v)));
            f.step(Part::Peerings)?;
        }
        f.end()?;
        f.begin(Part::Listings);
        for (i, id) in self.nc_names.values().enumerate() {
            for vpc in &self.nc(*id).vpcs {
                put_u64(&mut f.payload, i as u64);
                put_u64(&mut f.payload, order.vpc(*vpc));
                f.step(Part::Listings)?;
            }
        }
        f.end()?;
        f.begin(Part::Bodies);
        for (i, id) in self.vpc_names.values().enumerate() {
            write_body(&mut f, i as u64, self.vpc(*id), &order)?;
        }
        f.end()?;
        f.begin(Part::End);
        put_u64(&mut f.payload, self.routes);
        put_u64(&mut f.payload, self.vms);
        f.end()
    }

    /// Writes a snapshot file, whole or not at all: into a file beside it, which is made durable and then renamed.
    pub fn save_snapshot(&self, path: &Path, number: u64) -> Result<u64, SnapshotError> {
        let io = |what: &str, error| SnapshotError::Io { what: format!("{what} {}", path.display()), error };
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = path.with_extension("new");
        let write = || {
            let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&temporary)?);
            self.write_snapshot(&mut file, number)?;
            let file = file.into_inner().map_err(|e| e.into_error())?;
            file.sync_all()?;
            let len = file.metadata()?.len();
            std::fs::rename(&temporary, path)?;
            std::fs::File::open(dir)?.sync_all()?;
            Ok(len)
        };
        write().map_err(|e| {
            let _ = std::fs::remove_file(&temporary);
            io("cannot write", e)
        })
    }
}

/// Position of every NC and VPC in the snapshot.
struct Order {
    vpcs: Vec<u32>,
    ncs: Vec<u32>,
}

impl Order {
    fn new(m: &Model) -> Order {
        let positions = |ids: &mut dyn Iterator<Item = u32>| {
            let mut out = Vec::new();
            for (i, id) in ids.enumerate() {
                if out.len() <= id as usize {
                    out.resize(id as usize + 1, 0);
                }
                out[id as usize] = i as u32;
            }
            out
        };
        Order { vpcs: positions(&mut m.vpc_names.values().copied()), ncs: positions(&mut m.nc_names.values().copied()) }
    }

    fn vpc(&self, id: u32) -> u64 {
        self.vpcs[id as usize].into()
    }
}

fn write_body(f: &mut Frames<'_>, index: u64, vpc: &VpcState, order: &Order) -> std::io::Result<()> {
    let (mut routes, mut vms) = (vpc.routes(), vpc.vms.iter());
    let (mut routes_left, mut vms_left) = (vpc.routes_len(), vpc.vms.len());
    while routes_left + vms_left > 0 {
        // Routes first: a reader checks addresses against them as they come.
        let (r, v) = (routes_left.min(PIECE), if routes_left > PIECE { 0 } else { vms_left.min(PIECE) });
        put_u64(&mut f.payload, index);
        put_u64(&mut f.payload, r as u64);
        put_u64(&mut f.payload, v as u64);
        routes.by_ref().take(r).for_each(|(p, route)| put_route(&mut f.payload, p, route, order));
        vms.by_ref().take(v).for_each(|(mac, vm)| put_vm(&mut f.payload, *mac, vm, order));
        routes_left -= r;
        vms_left -= v;
        f.step(Part::Bodies)?;
    }
    Ok(())
}

fn put_route(out: &mut Vec<u8>, prefix: Prefix, route: &RouteState, order: &Order) {
    let named = if route.name.is_some() { ROUTE_NAMED } else { 0 };
    let labelled = if route.labels.is_empty() { 0 } else { ROUTE_LABELLED };
    out.push(route.target.number() | named | labelled);
    put_prefix(out, prefix);
    match route.target {
        Target::Peer(to) => put_u64(out, order.vpc(to)),
        Target::Line(line) if line != 0 => out.push(line),
        _ => {}
    }
    if let Some(name) = &route.name {
        put_text(out, name);
    }
    if labelled != 0 {
        put_labels(out, &route.labels);
    }
}

fn put_vm(out: &mut Vec<u8>, mac: Mac, vm: &VmState, order: &Order) {
    let named = if vm.name.is_some() { VM_NAMED } else { 0 };
    let labelled = if vm.labels.is_empty() { 0 } else { VM_LABELLED };
    let shaped = if vm.shape.is_some() { VM_SHAPED } else { 0 };
    out.push(named | labelled | shaped | if vm.meter.is_some() { VM_METERED } else { 0 });
    put_mac(out, mac);
    put_u64(out, order.ncs[vm.nc as usize].into());
    put_addresses(out, &vm.addresses);
    if let Some(name) = &vm.name {
        put_text(out, name);
    }
    if vm.meter.is_some() {
        put_optional_meter(out, vm.meter.as_deref());
    }
    if let Some(shape) = &vm.shape {
        shape.numbers().iter().for_each(|n| put_u64(out, *n));
    }
    if labelled != 0 {
        put_labels(out, &vm.labels);
    }
}

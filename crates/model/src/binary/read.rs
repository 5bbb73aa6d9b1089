// SPDX-License-Identifier: Apache-2.0
//! A snapshot as a model. Every rule that documents are held to is checked here too, in bulk: order, owners,
//! references, consents, loops, limits.

use super::codec::*;
use super::frame::{frame_at, read_file_head, Found, FILE_HEAD};
use super::objects::{kind_of, read_addresses, read_document, read_optional, read_optional_meter, read_vpc};
use super::write::{
    Part, PIECE, ROUTE_LABELLED, ROUTE_NAMED, SNAPSHOT_MARK, VM_LABELLED, VM_METERED, VM_NAMED, VM_SHAPED,
};
use super::{SnapshotError, BINARY_VERSION};
use crate::doc::Names;
use crate::kinds::*;
use crate::labels::{read_labels, Labels};
use crate::model::{agrees, Link, Model, NcState, PeeringState, RouteState, Target, VmState, VpcState};
use crate::prefix::{Mac, Prefix};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

/// Bytes of a snapshot at most.
const SNAPSHOT_BYTES_MAX: u64 = 16 << 30;

impl Model {
    /// Reads a snapshot file: the model and the number in its head.
    pub fn load_snapshot(path: &Path) -> Result<(Model, u64), SnapshotError> {
        let io = |error| SnapshotError::Io { what: format!("cannot read {}", path.display()), error };
        let len = std::fs::metadata(path).map_err(io)?.len();
        if len > SNAPSHOT_BYTES_MAX {
            return Err(SnapshotError::Invalid(format!("it has more than {SNAPSHOT_BYTES_MAX} bytes")));
        }
        Model::from_snapshot(&std::fs::read(path).map_err(io)?)
    }

    /// Reads a snapshot: the model and the number in its head.
    pub fn from_snapshot(bytes: &[u8]) -> Result<(Model, u64), SnapshotError> {
        let head = read_file_head(SNAPSHOT_MARK, bytes).ok_or(SnapshotError::NotASnapshot)?;
        let damaged = |offset: usize, what: &str| SnapshotError::Damaged { offset: offset as u64, what: what.into() };
        let (version, number) = head.map_err(|what| damaged(0, what))?;
        if version != BINARY_VERSION {
            return Err(SnapshotError::Version { found: version });
        }
        let mut load = Load::default();
        let mut at = FILE_HEAD;
        loop {
            match frame_at(bytes, at) {
                Found::Frame(payload, next) => {
                    let mut r = Reader::new(payload);
                    let offset = |r: &Reader<'_>| at + super::frame::FRAME_HEAD + r.position();
                    if let Err(what) = load.frame(&mut r) {
                        return Err(damaged(offset(&r), &what));
                    }
                    at = next;
                }
                Found::End if load.ended => break,
                Found::End => return Err(damaged(at, "the end is missing")),
                Found::Bad(what) => return Err(damaged(at, what)),
            }
        }
        let model = load.finish().map_err(SnapshotError::Invalid)?;
        Ok((model, number))
    }
}

/// Routes and VMs of the VPC that is being read, in order.
#[derive(Default)]
struct Body {
    vpc: u32,
    routes: Vec<(Prefix, RouteState)>,
    vms: Vec<(Mac, VmState)>,
}

#[derive(Default)]
struct Load {
    model: Model,
    names: Names,
    part: u8,
    body: Body,
    listings: Vec<(u32, u32)>,
    consents: HashMap<u32, HashSet<Name>>,
    /// Labels of NCs and peerings that are still to come.
    labels: HashMap<(Kind, Name), Labels>,
    ended: bool,
}

impl Load {
    /// One frame. Parts come in order, a part may have several frames.
    fn frame(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let part = r.byte()?;
        if part < self.part || self.ended {
            return Err(format!("part {part} stands behind part {}", self.part));
        }
        self.part = part;
        while !r.is_empty() {
            match part {
                p if p == Part::Labels as u8 => {
                    let (kind, name) = (kind_of(r.byte()?)?, self.names.get(r.name()?));
                    let labels = read_labels(r, &mut self.names)?;
                    self.labels.insert((kind, name), labels);
                }
                p if p == Part::Documents as u8 => {
                    let object = read_document(r, &mut self.names)?;
                    let (kind, name) = (object.kind(), object.name());
                    let twice = match object {
                        Object::Gateway(g) => self.model.gateway.replace(g).is_some(),
                        Object::SecurityGroup(mut g) => {
                            g.compile(None).map_err(|faults| format!("SecurityGroup `{name}`: {:?}", faults[0]))?;
                            self.model.set_named(Object::SecurityGroup(g)).is_some()
                        }
                        other => self.model.set_named(other).is_some(),
                    };
                    if twice {
                        return Err(format!("{kind} `{name}` is described twice, or there are two gateways"));
                    }
                }
                p if p == Part::Ncs as u8 => self.nc(r)?,
                p if p == Part::Vpcs as u8 => self.vpc(r)?,
                p if p == Part::Peerings as u8 => self.peering(r)?,
                p if p == Part::Listings as u8 => {
                    let nc = r.below(self.model.nc_names.len() as u64, "NC")? as u32;
                    self.listings.push((nc, r.below(self.model.vpc_names.len() as u64, "VPC")? as u32));
                }
                p if p == Part::Bodies as u8 => self.body(r)?,
                p if p == Part::End as u8 => self.end(r)?,
                p => return Err(format!("{p} is no part")),
            }
        }
        Ok(())
    }

    fn nc(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let (name, address) = (self.names.get(r.name()?), r.address()?);
        let labels = self.labels.remove(&(Kind::Nc, name.clone())).unwrap_or_default();
        let m = &mut self.model;
        let id = m.ncs.insert(NcState { name: name.clone(), address, vpcs: Vec::new(), vms: 0, labels });
        if m.nc_names.insert(name.clone(), id).is_some() {
            return Err(format!("Nc `{name}` is described twice"));
        }
        match m.nc_addrs.insert(address, id) {
            None => Ok(()),
            Some(_) => Err(format!("{address} belongs to two NCs")),
        }
    }

    fn vpc(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let spec = read_vpc(r, &mut self.names)?;
        let (name, vni) = (spec.name.clone(), spec.vni);
        let m = &mut self.model;
        let id = m.vpcs.insert(Box::new(VpcState::new(spec)));
        if m.vpc_names.insert(name.clone(), id).is_some() {
            return Err(format!("Vpc `{name}` is described twice"));
        }
        match m.vnis.insert(vni, id) {
            None => Ok(()),
            Some(_) => Err(format!("VNI {vni} belongs to two VPCs")),
        }
    }

    fn peering(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let name = self.names.get(r.name()?);
        let m = &mut self.model;
        let limit = m.vpc_names.len() as u64;
        let pair = [r.below(limit, "VPC")? as u32, r.below(limit, "VPC")? as u32];
        if pair[0] == pair[1] {
            return Err(format!("Peering `{name}` joins a VPC to itself"));
        }
        for (a, b) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let vpc = m.vpcs.at_mut(a);
            if !agrees(&mut self.consents, a, &vpc.spec.peerings, &name) {
                return Err(format!("Vpc `{}` does not agree to Peering `{name}`", vpc.spec.name));
            }
            if vpc.links.insert(b, Link { peering: name.clone(), routes: 0 }).is_some() {
                return Err(format!("Vpc `{}` has two peerings with one VPC", vpc.spec.name));
            }
        }
        let labels = self.labels.remove(&(Kind::Peering, name.clone())).unwrap_or_default();
        match m.peerings.insert(name.clone(), PeeringState { pair, labels }) {
            None => Ok(()),
            Some(_) => Err(format!("Peering `{name}` is described twice")),
        }
    }

    fn body(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let vpc = r.below(self.model.vpc_names.len() as u64, "VPC")? as u32;
        let (routes, vms) = (r.below(PIECE as u64 + 1, "routes")?, r.below(PIECE as u64 + 1, "VMs")?);
        if vpc != self.body.vpc {
            if vpc < self.body.vpc {
                return Err("the VPCs are out of order".into());
            }
            self.close()?;
            self.body.vpc = vpc;
        }
        self.body.routes.reserve(routes as usize);
        for _ in 0..routes {
            self.route(r)?;
        }
        self.body.vms.reserve(vms as usize);
        for _ in 0..vms {
            self.vm(r)?;
        }
        Ok(())
    }

    fn route(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let head = r.byte()?;
        let prefix = r.prefix()?;
        let vpcs = self.model.vpc_names.len() as u64;
        let rest = std::cell::RefCell::new(r);
        let peer = || rest.borrow_mut().below(vpcs, "VPC").map(|to| to as u32);
        let target = Target::numbered((head & 7).into(), peer, || rest.borrow_mut().byte());
        let target = target.ok_or_else(|| format!("{} is no scope", head & 7))??;
        let r = rest.into_inner();
        let name = if head & ROUTE_NAMED != 0 { read_optional(r)? } else { None };
        let labels = if head & ROUTE_LABELLED != 0 { read_labels(r, &mut self.names)? } else { Labels::default() };
        if self.body.routes.last().is_some_and(|l| l.0 >= prefix) {
            return Err(format!("route {prefix} is out of order"));
        }
        if let Some(name) = &name {
            if self.model.route_names.insert(name.clone(), (self.body.vpc, prefix)).is_some() {
                return Err(format!("Route `{name}` is described twice"));
            }
        }
        self.body.routes.push((prefix, RouteState { name, target, labels }));
        Ok(())
    }

    fn vm(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        let head = r.byte()?;
        let mac = r.mac()?;
        let nc = r.below(self.model.nc_names.len() as u64, "NC")? as u32;
        let addresses = match r.count(5)? {
            1 => Addresses::One([r.address()?]),
            n => Addresses::new(&read_addresses(r, n, 64)?).ok_or("a Vm has no address")?,
        };
        let name = if head & VM_NAMED != 0 { read_optional(r)? } else { None };
        let meter = if head & VM_METERED != 0 { read_optional_meter(r)? } else { None };
        let shape = if head & VM_SHAPED != 0 { Some(Box::new(r.shape()?)) } else { None };
        let labels = if head & VM_LABELLED != 0 { read_labels(r, &mut self.names)? } else { Labels::default() };
        if self.body.vms.last().is_some_and(|l| l.0 >= mac) {
            return Err(format!("VM {mac} is out of order"));
        }
        if let Some(name) = &name {
            if self.model.vm_names.insert(name.clone(), (self.body.vpc, mac)).is_some() {
                return Err(format!("Vm `{name}` is described twice"));
            }
        }
        self.model.ncs.at_mut(nc).vms += 1;
        if shape.is_some() {
            self.model.shaped.insert((self.body.vpc, mac));
        }
        self.body.vms.push((mac, VmState { name, nc, addresses, meter, shape, labels }));
        Ok(())
    }

    /// Builds the maps of a VPC from what was read of it.
    fn close(&mut self) -> Result<(), Fault> {
        let body = std::mem::take(&mut self.body);
        if body.routes.is_empty() && body.vms.is_empty() {
            return Ok(());
        }
        self.model.routes += body.routes.len() as u64;
        self.model.vms += body.vms.len() as u64;
        let vpc = self.model.vpcs.at_mut(body.vpc);
        let (mut addrs4, mut addrs6) = (Vec::with_capacity(body.vms.len()), Vec::new());
        for (mac, vm) in &body.vms {
            for a in vm.addresses.iter() {
                match *a {
                    IpAddr::V4(a) => addrs4.push((u32::from(a), *mac)),
                    IpAddr::V6(a) => addrs6.push((u128::from(a), *mac)),
                }
            }
        }
        let addresses = addrs4.len() + addrs6.len();
        vpc.addrs4 = addrs4.into_iter().collect();
        vpc.addrs6 = addrs6.into_iter().collect();
        vpc.vms = body.vms.into_iter().collect();
        let name = &vpc.spec.name;
        if vpc.addrs4.len() + vpc.addrs6.len() != addresses {
            return Err(format!("an address of Vpc `{name}` belongs to two VMs"));
        }
        if vpc.spec.gateways.iter().any(|a| vpc.owner(*a).is_some()) || vpc.vms.contains_key(&vpc.spec.gateway_mac) {
            return Err(format!("the gateway of Vpc `{name}` and a VM have an address in common"));
        }
        let first6 = body.routes.partition_point(|(p, _)| matches!(p, Prefix::V4(_)));
        for (prefix, route) in &body.routes {
            let Target::Peer(to) = route.target else { continue };
            let Some(link) = vpc.links.get_mut(&to) else {
                return Err(format!("route {prefix} of Vpc `{name}` leads to a VPC that it has no peering with"));
            };
            link.routes += 1;
            match *prefix {
                Prefix::V4(net) => vpc.peers4.insert(net, to),
                Prefix::V6(net) => vpc.peers6.insert(net, to),
            };
        }
        let mut routes = body.routes.into_iter();
        let v4 = |(p, r)| match p {
            Prefix::V4(net) => Some((net, r)),
            Prefix::V6(_) => None,
        };
        vpc.routes4 = routes.by_ref().take(first6).filter_map(v4).collect();
        let v6 = |(p, r)| match p {
            Prefix::V6(net) => Some((net, r)),
            Prefix::V4(_) => None,
        };
        vpc.routes6 = routes.filter_map(v6).collect();
        Ok(())
    }

    fn end(&mut self, r: &mut Reader<'_>) -> Result<(), Fault> {
        self.close()?;
        let (routes, vms) = (r.u64()?, r.u64()?);
        if (routes, vms) != (self.model.routes, self.model.vms) {
            return Err(format!("{routes} routes and {vms} VMs were written, others were read"));
        }
        self.ended = true;
        Ok(())
    }

    /// The rules that need the whole model.
    fn finish(mut self) -> Result<Model, String> {
        for (nc, vpc) in std::mem::take(&mut self.listings) {
            if !self.model.vpcs.at_mut(vpc).extra_ncs.insert(nc) {
                return Err(format!("Nc `{}` lists a VPC twice", self.model.nc(nc).name));
            }
            self.model.ncs.at_mut(nc).vpcs.push(vpc);
        }
        if let Some((kind, name)) = self.labels.keys().next() {
            return Err(format!("{kind} `{name}` has labels and is not there"));
        }
        let mut m = self.model;
        for (kind, used, limit) in m.water_levels() {
            if used > limit {
                return Err(format!("{used} {kind} objects, the limit is {limit} (spec.limits of the Gateway)"));
            }
        }
        if let Some(g) = &m.gateway {
            if let Some(a) = g.barred().into_iter().flatten().find(|a| m.nc_addrs.contains_key(a)) {
                return Err(format!("{a} belongs to the gateway and to an NC"));
            }
        }
        if let Some((kind, name, field, problem)) = m.named_faults(&|_, _| false, true).into_iter().next() {
            return Err(format!("{kind} `{name}`: {field} {problem}"));
        }
        m.settle_bound();
        if m.peers_are_short() {
            return Ok(m);
        }
        for (id, vpc) in m.vpcs.iter() {
            let v4 = vpc.peers4.keys().map(|net| Prefix::V4(*net));
            for prefix in v4.chain(vpc.peers6.keys().map(|net| Prefix::V6(*net))) {
                if let Some(problem) = m.find_peer_fault(id, prefix) {
                    return Err(format!("route {prefix} of Vpc `{}`: {problem}", vpc.spec.name));
                }
            }
        }
        Ok(m)
    }
}

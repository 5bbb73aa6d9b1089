// SPDX-License-Identifier: Apache-2.0
//! `tunny get --tables`: what the tables really hold, in the shape of objects. Names are those of the configuration where it
//! has one for a VNI; routes are the intervals that the tree cuts the addresses into, since that is what packets see.

use crate::error::NodeError;
use abi::Mac;
use abi::{NcId, Vni};
use model::Kind;
use serde_json::{json, Value};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use tables::{GroupId, RouteInterval, Target, TenantDump, VmDump, Writer};

/// Objects of a page.
const PAGE: usize = 1024;

/// A place in what the tables hold. The writer is held for a page, or for one VPC's routes, and no longer: changes come between, so that
/// pages are of different moments.
pub struct Cursor {
    names: BTreeMap<Vni, String>,
    /// The one of this name alone, unless empty.
    name: String,
    kinds: VecDeque<Kind>,
    /// What is left of the kind.
    ncs: Option<VecDeque<(IpAddr, NcId, Option<GroupId>)>>,
    vnis: Option<VecDeque<Vni>>,
    /// The next MAC address of the first of `vnis`.
    mac: u64,
    /// What is left of a VPC's routes.
    routes: (String, VecDeque<RouteInterval>),
}

impl Cursor {
    /// From the beginning of a kind, or of all.
    pub fn new(kind: &str, name: &str, names: BTreeMap<Vni, String>) -> Result<Cursor, NodeError> {
        let kinds = match kind {
            "all" => vec![Kind::Nc, Kind::Vpc, Kind::Vm, Kind::Route],
            text => match Kind::from_name(text) {
                Some(kind @ (Kind::Nc | Kind::Vpc | Kind::Vm | Kind::Route)) => vec![kind],
                _ => {
                    return Err(NodeError::Request(format!(
                        "the tables have no `{text}`; they have nc, vpc, vm and route"
                    )))
                }
            },
        };
        let (name, kinds, routes) = (name.to_string(), kinds.into(), Default::default());
        Ok(Cursor { names, name, kinds, ncs: None, vnis: None, mac: 0, routes })
    }

    /// Whether all has been told.
    pub fn over(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The next objects, at most a page of them; `writer` is called as often as something is read. Perhaps none, before the end.
    pub fn page<'w, G: std::ops::Deref<Target = Writer> + 'w>(
        &mut self,
        most: usize,
        writer: impl Fn() -> G,
    ) -> Vec<Value> {
        let most = most.min(PAGE);
        let mut list = Vec::new();
        while let Some(kind) = self.kinds.front().copied().filter(|_| list.len() < most) {
            let more = match kind {
                Kind::Nc => self.ncs(most, &writer, &mut list),
                _ => self.of_a_vpc(kind, most - list.len(), &writer, &mut list),
            };
            if !more {
                self.kinds.pop_front();
                (self.ncs, self.vnis, self.mac) = (None, None, 0);
            }
        }
        list
    }

    fn wants(&self, name: &str) -> bool {
        self.name.is_empty() || self.name == name
    }

    fn ncs<G: std::ops::Deref<Target = Writer>>(
        &mut self,
        most: usize,
        writer: &impl Fn() -> G,
        list: &mut Vec<Value>,
    ) -> bool {
        let mut left = self.ncs.take().unwrap_or_else(|| writer().ncs().into());
        while list.len() < most {
            let Some((address, id, group)) = left.pop_front() else { return false };
            if self.wants(&address.to_string()) {
                let spec = json!({"address": address.to_string(), "id": id.0, "group": group.map(|g| g.0 .0)});
                list.push(object(Kind::Nc, &address.to_string(), spec));
            }
        }
        self.ncs = Some(left);
        true
    }

    /// Takes one look at the first VPC that is left; false: none is.
    fn of_a_vpc<G: std::ops::Deref<Target = Writer>>(
        &mut self,
        kind: Kind,
        most: usize,
        writer: &impl Fn() -> G,
        list: &mut Vec<Value>,
    ) -> bool {
        if !self.routes.1.is_empty() {
            let n = self.routes.1.len().min(most);
            let vpc = &self.routes.0;
            let told = self.routes.1.drain(..n).map(|i| route(vpc, &i));
            list.extend(told.filter(|o| self.name.is_empty() || o["metadata"]["name"] == *self.name));
            return true;
        }
        let vnis = self.vnis.get_or_insert_with(|| writer().vnis().into());
        let Some(vni) = vnis.front().copied() else { return false };
        let vpc = self.names.get(&vni).cloned().unwrap_or_else(|| format!("vni-{vni}"));
        let mut next = None;
        if self.name.is_empty() || self.name.split('/').next() == Some(&*vpc) {
            match kind {
                Kind::Vm => {
                    let vms = writer().vms_from(vni, self.mac, most);
                    next = vms.last().filter(|_| vms.len() == most).map(|vm| vm.mac + 1);
                    let told = vms.iter().map(|vm| of_vm(&vpc, vm));
                    list.extend(told.filter(|o| self.name.is_empty() || o["metadata"]["name"] == *self.name));
                }
                Kind::Route => self.routes = (vpc, writer().intervals(vni).into()),
                _ => {
                    let writer = writer();
                    let head = writer.head(vni).filter(|_| self.wants(&vpc));
                    list.extend(
                        head.map(|head| of_vpc(&vpc, &head, writer.vm_count(vni), writer.intervals(vni).len())),
                    );
                }
            }
        }
        self.mac = next.unwrap_or(0);
        if next.is_none() {
            self.vnis.as_mut().map(VecDeque::pop_front);
        }
        true
    }
}

fn object(kind: Kind, name: &str, spec: Value) -> Value {
    json!({"kind": kind.name(), "metadata": {"name": name}, "spec": spec})
}

fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(|a| a.to_string()).collect()
}

fn of_vm(vpc: &str, vm: &VmDump) -> Value {
    let name = format!("{vpc}/{}", vm.addresses.first().map_or(String::new(), |a| a.to_string()));
    let spec = json!({"vpc": vpc, "addresses": texts(&vm.addresses), "mac": Mac(vm.mac).to_string(),
        "nc": vm.nc.to_string(), "id": vm.id.0, "metered": vm.metered});
    object(Kind::Vm, &name, spec)
}

fn route(vpc: &str, i: &RouteInterval) -> Value {
    let spec = json!({"vpc": vpc, "first": i.first.to_string(), "last": i.last.to_string(), "scope": scope(i)});
    object(Kind::Route, &format!("{vpc}/{}", i.first), spec)
}

fn of_vpc(vpc: &str, dump: &TenantDump, vms: usize, intervals: usize) -> Value {
    let spec = json!({"vni": dump.vni.0, "gatewayMac": Mac(dump.gateway_mac).to_string(),
        "gateways": texts(&dump.gateways), "icmp": dump.icmp, "metered": dump.metered,
        "vms": vms, "intervals": intervals, "members": texts(&dump.members)});
    object(Kind::Vpc, vpc, spec)
}

fn scope(interval: &RouteInterval) -> String {
    match interval.target {
        None => "none".into(),
        Some(Target::Local) => "local".into(),
        Some(Target::Peer(vni)) => format!("peer {vni}"),
        Some(Target::Blackhole) => "blackhole".into(),
        Some(Target::Internet) => "internet".into(),
        Some(Target::Line(line)) => format!("line {line}"),
        Some(Target::Via(hop)) => format!("local, via 0.0.0.0 + {hop}"),
        Some(Target::Region) => "region".into(),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Random change sets over a small universe, in which everything meets everything.
#![allow(dead_code)]

use abi::Vni;
use compile::*;
use model::*;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// Objects by kind and name.
pub type Naive = BTreeMap<(Kind, Name), Object>;

pub fn bytes(m: &Model) -> Vec<u8> {
    let mut out = Vec::new();
    m.write_snapshot(&mut out, 0).unwrap();
    out
}

/// The errors of one more document on top of `base`, as `line:column field problem`; what is refused changes nothing.
pub fn faults(mut base: Model, document: &str) -> Vec<String> {
    let show = |e: &ConfigError| format!("{}:{} {} {}", e.place.line, e.place.column, e.field, e.problem);
    let shown = |errors: Vec<ConfigError>| errors.iter().map(show).collect();
    let before = base.conntrack();
    let told = parse_text("x.yaml", &format!("apiVersion: tunny/v1\n{document}\n"))
        .and_then(|docs| base.apply(&docs).map(|_| ()))
        .map_or_else(shown, |()| Vec::new());
    assert!(told.is_empty() || base.conntrack() == before, "nothing half-applied");
    told
}

pub fn rebuilt(naive: &Naive) -> Result<Model, Vec<ConfigError>> {
    let mut docs = Documents::new();
    naive.values().for_each(|o| docs.put(o.clone()));
    Model::from_documents(&docs).map(|(m, _)| m)
}

const PREFIXES: [&str; 9] = [
    "10.0.0.0/8",
    "10.0.0.0/16",
    "10.1.0.0/16",
    "10.1.0.0/17",
    "10.1.128.0/17",
    "0.0.0.0/0",
    "10.1.1.0/24",
    "fd00::/16",
    "fd00::/64",
];

pub struct Generator {
    pub rng: ChaCha8Rng,
}

impl Generator {
    fn name(&mut self, prefix: &str, n: u32) -> Name {
        format!("{prefix}{}", self.rng.random_range(0..n)).into()
    }

    fn address(&mut self) -> IpAddr {
        if self.rng.random_ratio(1, 4) {
            return format!("fd00::{}", self.rng.random_range(1..9)).parse().unwrap();
        }
        IpAddr::V4(Ipv4Addr::new(10, self.rng.random_range(0..2), 0, self.rng.random_range(1..9)))
    }

    fn addresses(&mut self, max: usize) -> Vec<IpAddr> {
        let mut list = Vec::new();
        for _ in 0..self.rng.random_range(0..=max) {
            let a = self.address();
            if !list.contains(&a) {
                list.push(a);
            }
        }
        list
    }

    fn vpc_limits(&mut self) -> VpcLimits {
        let mut one = || if self.rng.random() { self.rng.random_range(1..=u32::MAX) } else { 0 };
        VpcLimits { sessions: one(), vm_sessions: one(), half_open: one() }
    }

    fn shape(&mut self) -> Option<Box<Shape>> {
        let rate = self.rng.random_range(1_000..1 << 30);
        self.rng.random_bool(0.2).then(|| Box::new(Shape::of_rate(rate)))
    }

    fn meter(&mut self) -> Option<Box<Meter>> {
        let pair = RatePair { committed: 8000, committed_burst: 10_000, peak: 16_000, peak_burst: 20_000 };
        self.rng.random_ratio(1, 4).then(|| Box::new(Meter { bandwidth: Some(pair), packets: None }))
    }

    fn own(&mut self, prefix: &str, n: u32) -> Option<Name> {
        self.rng.random_bool(0.6).then(|| self.name(prefix, n))
    }

    fn object(&mut self) -> Object {
        if self.rng.random_ratio(1, 20) {
            return match self.rng.random_range(0..6) {
                0 => self.pool(),
                1 => self.snat(),
                2 | 3 => self.mirror(),
                _ => self.elastic(),
            };
        }
        match self.rng.random_range(0..20) {
            0 => {
                let mut g = Gateway::new("gw".into());
                g.vtep4 = Some(Ipv4Addr::new(192, 0, 2, self.rng.random_range(0..6)));
                g.limits.vms = self.rng.random_range(3..20);
                g.limits.routes = self.rng.random_range(8..40);
                Object::Gateway(Box::new(g))
            }
            1 | 2 => {
                let vpcs: BTreeSet<Name> = (0..self.rng.random_range(0..3)).map(|_| self.name("v", 5)).collect();
                let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, self.rng.random_range(1..8)));
                Object::Nc(Nc {
                    name: self.name("n", 4),
                    address,
                    vpcs: vpcs.into_iter().collect(),
                    labels: self.labels(),
                })
            }
            3 | 4 => {
                let i = self.rng.random_range(0..5u32);
                let vni = if self.rng.random_ratio(1, 20) { 1 + i % 3 } else { i + 1 };
                let peerings: BTreeSet<Name> = (0..self.rng.random_range(0..9)).map(|_| self.name("p", 6)).collect();
                Object::Vpc(Box::new(Vpc {
                    name: format!("v{i}").into(),
                    vni: Vni(vni),
                    gateway_mac: Mac(0x0200_0000_0000 + u64::from(self.rng.random_range(1..20u32))),
                    gateways: self.addresses(2),
                    icmp: self.rng.random(),
                    pick_up: self.rng.random(),
                    limits: self.vpc_limits(),
                    weight: [1, 7, 1000][vni as usize % 3],
                    path: VpcPath {
                        vpc: ServedBy::ALL[self.rng.random_range(0..3)].1,
                        peerings: self.rng.random(),
                        sessions: self.rng.random(),
                    },
                    meter: self.meter(),
                    labels: self.labels(),
                    peerings: peerings.into_iter().collect(),
                }))
            }
            5 | 6 => {
                let name = self.name("p", 6);
                Object::Peering(Peering { name, vpcs: [self.name("v", 5), self.name("v", 5)], labels: self.labels() })
            }
            7..=11 => {
                let (mut list, name) = (self.addresses(3), self.own("m", 10));
                list.is_empty().then(|| list.push(self.address()));
                Object::Vm(Vm {
                    name,
                    vpc: self.name("v", 5),
                    addresses: Addresses::new(&list).unwrap(),
                    mac: Mac(0x0200_0000_0000 + u64::from(self.rng.random_range(5..40u32))),
                    nc: self.name("n", 4),
                    meter: self.meter(),
                    shape: self.shape(),
                    labels: self.labels(),
                })
            }
            _ => {
                let vpc = self.rng.random_range(0..5);
                let scope = match self.rng.random_range(0..9) {
                    0 => Scope::Local,
                    1 => Scope::Blackhole,
                    2 => Scope::Internet,
                    3 => Scope::Peer(self.name("v", 5)),
                    _ => Scope::Peer(format!("v{}", (vpc + [1, 4][self.rng.random_range(0..2)]) % 5).into()),
                };
                let prefix = PREFIXES.choose(&mut self.rng).unwrap().parse().unwrap();
                Object::Route(Route {
                    name: self.own("r", 20),
                    vpc: format!("v{vpc}").into(),
                    prefix,
                    scope,
                    labels: self.labels(),
                })
            }
        }
    }

    fn labels(&mut self) -> Labels {
        let keys = ["app", "example.org/tier"].into_iter().filter(|_| self.rng.random_ratio(1, 5));
        let keys: Vec<&str> = keys.collect();
        let all = keys.into_iter().map(|key| (key, ["", "a", "b"][self.rng.random_range(0..3)]));
        Labels::new(&all.collect::<Vec<_>>()).unwrap()
    }

    fn pool(&mut self) -> Object {
        let i = self.rng.random_range(0..3u8);
        let first = Ipv4Addr::new(203, 0, 113, i * 8 + self.rng.random_range(0..4u8));
        let last = Ipv4Addr::new(203, 0, 113, i * 8 + self.rng.random_range(4..10u8));
        let (ranges, reuse_ports) = (vec![AddressRange { first, last }], self.rng.random());
        Object::PublicPool(Box::new(PublicPool {
            shares: Vec::new(),
            name: format!("o{i}").into(),
            ranges,
            ports: (2000, 3000),
            block: 64,
            reuse_ports,
            labels: self.labels(),
        }))
    }

    fn snat(&mut self) -> Object {
        let (vpc, pools) = (self.name("v", 4), vec![self.name("o", 3)]);
        let prefix = ["fd00:1::/32", "fd00:1:2::/48", "fd00:2::/48"][self.rng.random_range(0..3)].parse().unwrap();
        let (name, ipv6_prefixes) = (self.name("s", 3), vec![prefix]);
        let (open, offload, limits) = (self.rng.random(), self.rng.random(), SnatLimits::default());
        let mut timeouts = [0; 10];
        timeouts[self.rng.random_range(0..10)] = self.rng.random_range(0..86_400);
        Object::Snat(Box::new(Snat {
            name,
            vpc,
            pools,
            ipv6_prefixes,
            ipv6_inbound: open,
            open,
            offload,
            limits,
            timeouts,
            labels: self.labels(),
        }))
    }

    fn mirror(&mut self) -> Object {
        let vms: BTreeSet<Name> = (0..self.rng.random_range(0..3)).map(|_| self.name("m", 10)).collect();
        let collector = IpAddr::V4(Ipv4Addr::new(192, 0, 2, self.rng.random_range(5..60)));
        let to_vm = self.rng.random_ratio(1, 3).then(|| self.name("m", 10));
        let direction = [MirrorDirection::Ingress, MirrorDirection::Egress, MirrorDirection::Both];
        Object::Mirror(Box::new(Mirror {
            name: self.name("i", 3),
            vpc: self.name("v", 5),
            vms: vms.into_iter().collect(),
            direction: direction[self.rng.random_range(0..3)],
            filter: vec!["tcp/443 10.0.0.0/8".parse().unwrap()],
            bytes: self.rng.random_bool(0.5).then_some(128),
            to_address: to_vm.is_none().then_some(collector),
            to_vm,
            vni: Vni(self.rng.random_range(3..9)),
            limit: PacketLimit { rate: 100, burst: 10 },
            labels: self.labels(),
        }))
    }

    fn elastic(&mut self) -> Object {
        let (name, address) = (self.name("e", 4), Ipv4Addr::new(203, 0, 113, self.rng.random_range(0..26)));
        let vm = match self.rng.random() {
            true => self.name("m", 10),
            false => vm_name(&self.name("v", 4), self.address()),
        };
        let (protocol, first) = (Protocol::Tcp, self.rng.random_range(1..9));
        let forward = PortForward { protocol, first, last: first + 3, vm: vm.clone(), port: 7 };
        let (vm, forwards) = if self.rng.random() { (Some(vm), vec![]) } else { (None, vec![forward]) };
        Object::ElasticIp(Box::new(ElasticIp { name, address, vm, forwards, labels: self.labels() }))
    }

    /// A set of puts and deletions, each object once.
    pub fn documents(&mut self, naive: &Naive) -> Documents {
        let mut docs = Documents::new();
        let mut named = BTreeSet::new();
        for _ in 0..1 + self.rng.next_u32() % 4 * self.rng.random_range(0..2) {
            let delete = self.rng.random_ratio(1, 4);
            let existing: Vec<&(Kind, Name)> = naive.keys().collect();
            match existing.choose(&mut self.rng) {
                Some((kind, name)) if delete && named.insert((*kind, name.clone())) => docs.delete(*kind, name),
                _ => {
                    let object = self.object();
                    if named.insert((object.kind(), object.name())) {
                        docs.put(object);
                    }
                }
            }
        }
        docs
    }
}

/// A model in which much is already allowed, so that random changes meet something.
pub fn start(g: &mut Generator) -> Naive {
    let mut naive = Naive::new();
    let mut put = |o: Object| drop(naive.insert((o.kind(), o.name()), o));
    for i in 0..4u8 {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10 + i));
        put(Object::Nc(Nc { name: format!("n{i}").into(), address, vpcs: vec![], labels: Default::default() }));
    }
    for i in 0..5u32 {
        let peerings = (0..6).map(|p| Name::from(format!("p{p}"))).collect();
        let gateway_mac = Mac(0x0200_0000_0000 + u64::from(i) + 1);
        let (name, vni) = (format!("v{i}").into(), i + 1);
        put(Object::Vpc(Box::new(Vpc {
            name,
            vni: Vni(vni),
            gateway_mac,
            gateways: vec![],
            icmp: true,
            pick_up: false,
            limits: Default::default(),
            weight: 1,
            path: Default::default(),
            meter: None,
            peerings,
            labels: Default::default(),
        })));
    }
    if g.rng.random_bool(0.8) {
        for i in 0..5u32 {
            let vpcs = [format!("v{i}").into(), format!("v{}", (i + 1) % 5).into()];
            put(Object::Peering(Peering { name: format!("p{i}").into(), vpcs, labels: Default::default() }));
        }
    }
    naive
}

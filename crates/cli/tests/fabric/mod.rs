// SPDX-License-Identifier: Apache-2.0
//! Other tunnel ends of a fabric: a Linux host with kernel VXLAN, a bridge and FRR, and speakers of GoBGP, in network namespaces.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use super::bgp::{Frr, Room};
use super::region::{inside, wait_long, Region};
use lab::shell::Namespace;
use node::routing::evpn::client::Daemon;
use node::routing::evpn::{announce, api};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Child;

pub use lab::fabric::GOBGP_API as API;

/// A namespace behind the lab's router, at 172.31.SEGMENT.2.
pub fn room(region: &Region, name: &str, segment: u8) -> Room {
    let room = Room(Namespace(format!("{}-{name}", region.ns("gw").0)));
    let (net, ns) = (region.ns("net"), room.0 .0.clone());
    lab::shell::run(&format!("ip netns add {ns}")).unwrap();
    room.0.run("ip link set lo up").unwrap();
    let port = format!("to-{name}");
    lab::shell::run(&format!("ip link add {port} netns {} type veth peer name wan netns {ns}", net.0)).unwrap();
    net.run(&format!("ip addr add 172.31.{segment}.1/24 dev {port}")).unwrap();
    net.run(&format!("ip link set {port} up")).unwrap();
    room.0.run(&format!("ip addr add 172.31.{segment}.2/24 dev wan")).unwrap();
    room.0.run("ip link set wan up").unwrap();
    // Not a default route: FRR takes none for the way to a next hop.
    for to in ["172.31.0.0/16", "198.18.0.0/16"] {
        room.0.run(&format!("ip route add {to} via 172.31.{segment}.1")).unwrap();
    }
    room
}

/// A host whose set-up is that of any EVPN host with FRR: one VXLAN device and one bridge a VNI, and `advertise-all-vni`.
pub struct Host {
    pub room: Room,
    pub vtep: String,
    _frr: Frr,
}

impl Host {
    pub fn new(region: &Region, name: &str, segment: u8, vni: (u32, &[&str])) -> Host {
        Host::with_speaker(region, name, segment, vni, &lab::plan::VTEP4.to_string())
    }

    /// One that speaks with another routing daemon than one at the gateway.
    pub fn with_speaker(
        region: &Region,
        name: &str,
        segment: u8,
        (vni, addresses): (u32, &[&str]),
        speaker: &str,
    ) -> Host {
        let room = room(region, name, segment);
        let vtep = format!("172.31.{segment}.2");
        let run = |line: &str| drop(room.0.run(line).unwrap());
        lab::fabric::evpn_devices(vni, &vtep, addresses).iter().for_each(|line| run(line));
        let config = lab::fabric::evpn_host(&vtep, speaker);
        let frr = Frr::start(&room.0, &["bgpd"], &config);
        Host { room, vtep, _frr: frr }
    }

    /// MAC address of its bridge.
    pub fn mac(&self, vni: u32) -> String {
        let text = self.room.0.run(&format!("cat /sys/class/net/br{vni}/address")).unwrap_or_default();
        match text.trim() {
            // The namespace shows another one's sysfs.
            "" => String::new(),
            mac => mac.into(),
        }
    }
}

/// A gobgpd with neighbours.
pub struct Gobgp {
    pub space: Namespace,
    dir: tempfile::TempDir,
    child: Child,
}

impl Gobgp {
    pub fn start(space: &Namespace, own: &str, peers: &[&str]) -> Gobgp {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("gobgpd.toml"), lab::fabric::gobgpd(own, peers)).unwrap();
        let child = Self::run(space, dir.path().to_path_buf());
        Gobgp { space: space.clone(), dir, child }
    }

    fn run(space: &Namespace, dir: PathBuf) -> Child {
        let argv = lab::fabric::gobgpd_command(&dir.join("gobgpd.toml"));
        space.spawn(&argv, &dir.join("gobgpd.log")).unwrap()
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// And begins anew, knowing nothing.
    pub fn restart(&mut self) {
        self.child = Self::run(&self.space, self.dir.path().to_path_buf());
    }

    /// Its EVPN routes, one a line.
    pub fn rib(&self) -> String {
        self.space.run_argv(&["gobgp", "global", "rib", "-a", "evpn"]).unwrap_or_default()
    }

    /// Announces paths, or withdraws them.
    pub fn tell(&self, paths: Vec<api::Path>, announce: bool) {
        let at: SocketAddr = API.parse().unwrap();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut daemon = Daemon::connect(at).await.map_err(|e| e.to_string())?;
                if announce {
                    let refused = daemon.add(paths).await.map_err(|e| e.to_string())?;
                    return refused.into_iter().next().map_or(Ok(()), Err);
                }
                for path in paths {
                    daemon.delete(path).await.map_err(|e| e.to_string())?;
                }
                Ok::<_, String>(())
            })
        };
        wait_long("the fabric's speaker is told", || {
            inside(&self.space, work.clone()).join().unwrap().inspect_err(|e| eprintln!("gobgpd: {e}")).ok()
        });
    }
}

impl Drop for Gobgp {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let text = std::fs::read_to_string(self.dir.path().join("gobgpd.log")).unwrap_or_default();
            eprintln!("gobgpd in {}:\n{text}", self.space.0);
        }
    }
}

/// What a tunnel end says of a VNI, with this route target.
pub struct Sayer {
    pub vni: u32,
    pub target: &'static str,
    pub vtep: IpAddr,
    /// Tells its routes from those of others.
    pub rd: String,
}

impl Sayer {
    fn vpc(&self, router: &str) -> compile::EvpnVpc {
        compile::EvpnVpc {
            name: String::new(),
            vpc: String::new(),
            vni: abi::Vni(self.vni),
            mac: router.parse().unwrap(),
            import: Default::default(),
            export: vec![self.target.parse().unwrap()],
            rd: None,
            limits: model::EvpnLimits { vms: 1, routes: 1, vteps: 1 },
            default: false,
            vteps: (None, None),
        }
    }

    /// A MAC address with an IP address, which has moved so often.
    pub fn host(&self, mac: &str, ip: &str, sequence: u32) -> api::Path {
        let own = compile::Own::Vm(mac.parse().unwrap(), ip.parse().unwrap());
        let mut path = announce::path(&self.vpc("02:00:00:00:00:01"), self.rd.parse().unwrap(), own, self.vtep);
        let mut communities = vec![announce::route_target(self.target.parse().unwrap())];
        communities.push(api::Any::of(api::ENCAPSULATION, &api::Encapsulation { tunnel_type: 8 }));
        communities.push(api::Any::of(api::MOBILITY, &api::Mobility { is_sticky: false, sequence_num: sequence }));
        path.pattrs.retain(|a| a.name() != api::COMMUNITIES);
        path.pattrs.push(api::Any::of(api::COMMUNITIES, &api::Communities { communities }));
        path
    }

    /// A prefix behind a router.
    pub fn prefix(&self, prefix: &str, router: &str) -> api::Path {
        let own = compile::Own::Prefix(prefix.parse().unwrap());
        announce::path(&self.vpc(router), self.rd.parse().unwrap(), own, self.vtep)
    }
}

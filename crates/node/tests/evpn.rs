// SPDX-License-Identifier: Apache-2.0
//! What is read of an EVPN daemon's words, and what of them a VPC learns (`docs/design/evpn.md`).

use abi::{Mac, Prefix, Vni};
use compile::{EvpnPlan, EvpnVpc, Own};
use model::{BgpNumber, EvpnLimits, Scope};
use node::routing::evpn::announce::{key, path};
use node::routing::evpn::api::{self, Any, Path};
use node::routing::evpn::decide::{decide, Configured, Decision, Fabric};
use node::routing::evpn::heard::{sort, Heard, KeptFabric, Memory};
use node::routing::evpn::moves::{Moves, MOVES, WITHIN};
use node::routing::evpn::said::{read, Refused, Said, What};
use node::routing::stale::HOLD;
use prost::Message;
use rand::{RngExt, SeedableRng};
use std::net::IpAddr;
use std::time::{Duration, Instant};

const A: &str = "192.0.2.1";
const B: &str = "192.0.2.2";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(n: u64) -> Mac {
    Mac(0x0200_0000_0000 | n)
}

fn number(text: &str) -> BgpNumber {
    text.parse().unwrap()
}

fn vpc() -> EvpnVpc {
    EvpnVpc {
        name: "blue".into(),
        vpc: "blue".into(),
        vni: Vni(100),
        mac: Mac(0x0200_0064_0001),
        import: [number("65000:100")].into(),
        export: vec![number("65000:100"), number("192.0.2.9:7"), number("4200000000:9")],
        rd: Some(number("192.0.2.9:100")),
        limits: EvpnLimits { vms: 3, routes: 2, vteps: 8 },
        default: false,
        vteps: (Some([192, 0, 2, 9].into()), None),
    }
}

fn plan() -> EvpnPlan {
    EvpnPlan { daemon: None, own: [ip("192.0.2.9")].into(), vpcs: vec![vpc()] }
}

/// VMs in 10.0.0.0/16, of which one is configured; a peer, and the Internet.
struct Blue;

impl Configured for Blue {
    fn has_mac(&self, of: Mac) -> bool {
        of == mac(0x11)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        address == ip("10.0.0.11")
    }

    fn route(&self, prefix: Prefix) -> Option<Scope<Vni>> {
        let of = [
            ("10.0.0.0/16", Scope::Local),
            ("10.1.0.0/16", Scope::Peer(Vni(8))),
            ("fd00::/64", Scope::Local),
            ("0.0.0.0/0", Scope::Internet),
        ];
        of.into_iter().find(|(p, _)| p.parse::<Prefix>().unwrap() == prefix).map(|(_, scope)| scope)
    }
}

fn host(n: u64, address: &str, vtep: &str, sequence: u32) -> Heard {
    let ip_of = (!address.is_empty()).then(|| ip(address));
    Heard { what: What::Host { mac: mac(n), ip: ip_of, sequence }, vtep: ip(vtep), stale: None }
}

fn prefix(text: &str, router: u64, vtep: &str) -> Heard {
    let what = What::Prefix { prefix: text.parse().unwrap(), router: Some(mac(router)), gateway: None };
    Heard { what, vtep: ip(vtep), stale: None }
}

fn decided(heard: &[Heard], had: &Fabric) -> Decision {
    decide(&vpc(), heard.iter(), &Blue, had, (&mut Moves::default(), Instant::now()))
}

/// MAC address, tunnel end and addresses of what is learned.
fn hosts(d: &Decision) -> Vec<(u64, String, Vec<String>)> {
    let of = |a: &Vec<IpAddr>| a.iter().map(|a| a.to_string()).collect();
    d.fabric.hosts.iter().map(|(m, h)| (m.0 & 0xffff, h.vtep.to_string(), of(&h.addresses))).collect()
}

fn is(n: u64, vtep: &str, addresses: &[&str]) -> (u64, String, Vec<String>) {
    (n, vtep.into(), addresses.iter().map(|a| a.to_string()).collect())
}

#[test]
fn what_is_announced_is_read_back_the_same() {
    let all = [
        (Own::Member, What::Member),
        (Own::Vm(mac(1), ip("10.0.0.1")), What::Host { mac: mac(1), ip: Some(ip("10.0.0.1")), sequence: 0 }),
        (Own::Vm(mac(1), ip("fd00::1")), What::Host { mac: mac(1), ip: Some(ip("fd00::1")), sequence: 0 }),
        (
            Own::Prefix("10.0.0.0/16".parse().unwrap()),
            What::Prefix { prefix: "10.0.0.0/16".parse().unwrap(), router: Some(vpc().mac), gateway: None },
        ),
        (
            Own::Prefix("fd00::/64".parse().unwrap()),
            What::Prefix { prefix: "fd00::/64".parse().unwrap(), router: Some(vpc().mac), gateway: None },
        ),
    ];
    for rd in ["192.0.2.9:100", "65000:70000", "4200000000:5"].map(number) {
        for (own, what) in all {
            let told = path(&vpc(), rd, own, ip("192.0.2.9"));
            assert_eq!(key(&told), Some((rd, own)));
            let said = Said { what, vtep: ip("192.0.2.9"), vni: 100, tag: 0, vxlan: true, targets: vpc().export };
            assert_eq!(read(&told), Ok(Some(said)), "{own:?}");
        }
    }
}

#[test]
fn no_words_of_the_daemon_end_in_a_panic() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let (mut read_well, mut unreadable) = (0, 0);
    let seeds: Vec<Path> = [Own::Member, Own::Vm(mac(1), ip("10.0.0.1")), Own::Prefix("10.0.0.0/16".parse().unwrap())]
        .map(|own| path(&vpc(), number("1:1"), own, ip(A)))
        .into();
    for i in 0..60_000 {
        let mut told = seeds[i % seeds.len()].clone();
        for _ in 0..rng.random_range(0..3) {
            let mut anys: Vec<&mut Any> = told.nlri.iter_mut().chain(&mut told.pattrs).collect();
            let at = rng.random_range(0..anys.len());
            let value = &mut anys[at].value;
            match rng.random_range(0..4) {
                0 if !value.is_empty() => {
                    let at = rng.random_range(0..value.len());
                    value[at] = rng.random();
                }
                1 => value.truncate(rng.random_range(0..=value.len())),
                2 => value.extend(std::iter::repeat_n(rng.random::<u8>(), 3)),
                _ => anys[at].type_url = "type.googleapis.com/apipb.EVPNIPPrefixRoute".into(),
            }
        }
        match read(&told) {
            Ok(Some(said)) => {
                assert!(said.vni <= 0xff_ffff);
                read_well += 1;
            }
            Ok(None) => {}
            Err(_) => unreadable += 1,
        }
        let _ = key(&told);
        // And bytes that are no message at all.
        let noise: Vec<u8> = (0..rng.random_range(0..64)).map(|_| rng.random()).collect();
        if let Ok(path) = Path::decode(&noise[..]) {
            let _ = (read(&path), key(&path));
        }
    }
    assert!(read_well > 1000 && unreadable > 1000, "{read_well}, {unreadable}");
    // What lacks a part that is needed.
    let whole = &seeds[1];
    for (what, path) in [
        ("no route", Path { nlri: None, ..whole.clone() }),
        ("no next hop", Path { pattrs: Vec::new(), ..whole.clone() }),
    ] {
        assert_eq!(read(&path), Err(what));
    }
    let group = api::MacIp { mac_address: "01:00:5e:00:00:01".into(), labels: vec![1], ..Default::default() };
    let path = Path { nlri: Some(Any::of(api::MAC_IP, &group)), ..whole.clone() };
    assert_eq!(read(&path), Err("a MAC address of nobody"));
    let large = api::MacIp { mac_address: "02:00:00:00:00:01".into(), labels: vec![1 << 24], ..Default::default() };
    let path = Path { nlri: Some(Any::of(api::MAC_IP, &large)), ..whole.clone() };
    assert_eq!(read(&path), Err("no VNI"));
}

#[test]
fn each_vpc_hears_what_is_meant_for_it() {
    let said = |targets: &[&str], vni, vtep: &str| Said {
        what: What::Member,
        vtep: ip(vtep),
        vni,
        tag: 0,
        vxlan: true,
        targets: targets.iter().map(|t| number(t)).collect(),
    };
    let good = said(&["1:1", "65000:100", "65000:100"], 100, A);
    let sorted = sort(
        &plan(),
        vec![
            good.clone(),
            said(&["65000:101"], 100, A),
            said(&[], 100, A),
            said(&["65000:100"], 101, A),
            said(&["65000:100"], 100, "192.0.2.9"),
            said(&["65000:100"], 100, "224.0.0.1"),
            said(&["65000:100"], 100, "0.0.0.0"),
            said(&["65000:100"], 100, "2001:db8::1"),
            Said { tag: 5, ..good.clone() },
            Said { vxlan: false, ..good },
        ],
    );
    assert_eq!(sorted.foreign, 2);
    let (heard, refused) = &sorted.vpcs[&Vni(100)];
    assert_eq!(heard, &[Heard { what: What::Member, vtep: ip(A), stale: None }]);
    let all = [
        (Refused::OtherVni, 1),
        (Refused::OwnVtep, 1),
        (Refused::BadVtep, 2),
        (Refused::NoVtep, 1),
        (Refused::Tag, 1),
        (Refused::Encapsulation, 1),
    ];
    assert_eq!(refused, &all.into());
}

#[test]
fn what_is_configured_holds_and_what_is_elsewhere_is_not_learned() {
    let d = decided(
        &[
            host(1, "10.0.0.1", A, 0),
            host(1, "fd00::1", A, 0),
            host(1, "fe80::1", A, 0),
            host(0x11, "10.0.0.12", A, 99),
            host(2, "10.0.0.11", A, 99),
            host(3, "8.8.8.8", A, 0),
            host(4, "10.1.0.4", A, 0),
            host(5, "", A, 0),
            prefix("10.0.9.0/24", 0x21, A),
            prefix("10.1.9.0/24", 0x21, A),
            prefix("0.0.0.0/0", 0x21, A),
            prefix("127.0.0.0/8", 0x21, A),
            prefix("10.9.0.0/24", 0x11, A),
            prefix("10.8.0.0/24", 0x21, A),
        ],
        &Fabric::default(),
    );
    assert_eq!(hosts(&d), [is(1, A, &["10.0.0.1", "fd00::1"]), is(0x21, A, &[])]);
    assert_eq!(d.fabric.prefixes.keys().map(|p| p.to_string()).collect::<Vec<_>>(), ["10.8.0.0/24"]);
    assert_eq!(d.fabric.hosts[&mac(0x21)].hop_address(), Some(ip("0.0.0.1")));
    let all = [
        (Refused::Own, 3),
        (Refused::NotLocal, 2),
        (Refused::Martian, 2),
        (Refused::Peer, 1),
        (Refused::Default, 1),
        (Refused::NoRouter, 1),
    ];
    assert_eq!(d.refused, all.into());
}

#[test]
fn the_highest_sequence_number_holds_then_the_lowest_tunnel_end() {
    let at = |heard: &[Heard]| hosts(&decided(heard, &Fabric::default()));
    assert_eq!(at(&[host(1, "10.0.0.1", A, 3), host(1, "10.0.0.1", B, 4)]), [is(1, B, &["10.0.0.1"])]);
    assert_eq!(at(&[host(1, "10.0.0.1", B, 4), host(1, "10.0.0.1", A, 4)]), [is(1, A, &["10.0.0.1"])]);
    // The sequence number is the MAC address's, whichever of its routes says it.
    let three = [host(1, "10.0.0.1", A, 3), host(1, "10.0.0.2", A, 5), host(1, "10.0.0.3", B, 4)];
    assert_eq!(at(&three), [is(1, A, &["10.0.0.1", "10.0.0.2"])]);
    // What nobody says any more gives way, whatever its number.
    let stale = Heard { stale: Some(Instant::now()), ..host(1, "10.0.0.1", B, 9) };
    assert_eq!(at(&[host(1, "10.0.0.1", A, 0), stale]), [is(1, A, &["10.0.0.1"])]);
    // One IP address of two MAC addresses: the one that had it.
    let both = [host(1, "10.0.0.1", A, 0), host(2, "10.0.0.1", B, 0)];
    let had = decided(&both[1..], &Fabric::default()).fabric;
    let d = decided(&both, &had);
    assert_eq!((hosts(&d), d.refused), (vec![is(2, B, &["10.0.0.1"])], [(Refused::Taken, 1)].into()));
}

#[test]
fn a_mac_address_that_moves_too_often_is_held_until_it_rests() {
    let (mut moves, begun) = (Moves::default(), Instant::now());
    let mut at = |n: u32, vtep: &str, after: Duration| {
        let heard = [host(1, "10.0.0.1", vtep, n), host(2, "10.0.0.2", A, 0)];
        decide(&vpc(), heard.iter(), &Blue, &Fabric::default(), (&mut moves, begun + after))
    };
    let second = Duration::from_secs(1);
    for n in 0..MOVES as u32 {
        let d = at(n, [A, B][n as usize % 2], second * n);
        assert!(d.flapping.is_empty(), "{n}");
        assert_eq!(d.fabric.hosts[&mac(1)].vtep, ip([A, B][n as usize % 2]));
    }
    // The fifth move is one too many: where it was it is not said any more, so it is nowhere. Another MAC address is as it was.
    let d = at(5, B, second * 5);
    assert_eq!((hosts(&d), d.flapping), (vec![is(2, A, &["10.0.0.2"])], [mac(1)].into()));
    assert_eq!(d.refused, [(Refused::Moves, 1)].into());
    // Back where it was held, and away again: each move begins the rest anew.
    assert_eq!(hosts(&at(6, A, second * 20))[0], is(1, A, &["10.0.0.1"]));
    assert_eq!(at(7, B, second * 100).flapping.len(), 1);
    assert_eq!(at(7, B, second * 99 + WITHIN).flapping.len(), 1);
    let d = at(7, B, second * 100 + WITHIN);
    assert_eq!((hosts(&d)[0].clone(), d.flapping.len()), (is(1, B, &["10.0.0.1"]), 0));
}

#[test]
fn beyond_a_limit_nothing_is_learned_and_nothing_is_lost() {
    let many: Vec<Heard> = (1..8).map(|n| host(n, &format!("10.0.0.{}", 20 + n), A, 0)).collect();
    let had = decided(&many[5..], &Fabric::default()).fabric;
    assert_eq!(had.hosts.len(), 2);
    let d = decided(&many, &had);
    assert_eq!(d.fabric.hosts.keys().map(|m| m.0 & 0xff).collect::<Vec<_>>(), [1, 6, 7]);
    assert_eq!(d.refused, [(Refused::Limit, 4)].into());
    let routes: Vec<Heard> = (0..5).map(|n| prefix(&format!("10.9.{n}.0/24"), 0x21, A)).collect();
    let had = decided(&routes[4..], &Fabric::default()).fabric;
    let d = decided(&routes, &had);
    assert_eq!(d.fabric.prefixes.keys().map(|p| p.to_string()).collect::<Vec<_>>(), ["10.9.0.0/24", "10.9.4.0/24"]);
    assert_eq!(d.refused, [(Refused::Limit, 3)].into());
    let ends: Vec<Heard> =
        (0..20).map(|n| Heard { what: What::Member, vtep: ip(&format!("192.0.2.{}", 100 + n)), stale: None }).collect();
    let had = decided(&ends[19..], &Fabric::default()).fabric;
    let d = decided(&ends, &had);
    assert_eq!((d.fabric.members.len(), d.refused), (8, [(Refused::Limit, 12)].into()));
    assert!(d.fabric.members.contains(&ip("192.0.2.119")));
}

#[test]
fn routers_keep_their_numbers_and_prefixes_go_with_them() {
    let said = [prefix("10.8.0.0/24", 0x31, A), prefix("10.9.0.0/24", 0x32, B)];
    let first = decided(&said, &Fabric::default()).fabric;
    let hop = |f: &Fabric, n| f.hosts[&mac(n)].hop;
    assert_eq!((hop(&first, 0x31), hop(&first, 0x32)), (1, 2));
    let mut second = decided(&said[1..], &first).fabric;
    assert_eq!((hop(&second, 0x32), second.hosts.len()), (2, 1));
    let third = decided(&[said[1].clone(), prefix("10.7.0.0/24", 0x30, A)], &second).fabric;
    assert_eq!((hop(&third, 0x30), hop(&third, 0x32)), (1, 2));
    // A router at two tunnel ends is one too many.
    let d = decided(&[said[0].clone(), prefix("10.9.0.0/24", 0x31, B)], &first);
    assert_eq!((d.fabric.prefixes.len(), d.refused), (1, [(Refused::NoRouter, 1)].into()));
    // A VM may be the router, also by its address.
    let gateway = What::Prefix { prefix: "10.6.0.0/24".parse().unwrap(), router: None, gateway: Some(ip("10.0.0.1")) };
    let by = Heard { what: gateway, vtep: ip(B), stale: None };
    let d = decided(&[by.clone(), host(1, "10.0.0.1", A, 0)], &Fabric::default());
    assert_eq!(d.fabric.prefixes.values().next().map(|far| far.router), Some(mac(1)));
    assert_eq!(decided(&[by], &Fabric::default()).refused, [(Refused::NoRouter, 1)].into());
    assert!(second.remove(mac(0x32)).is_some() && second.is_empty());
}

#[test]
fn what_nobody_says_any_more_stays_for_the_hold_time() {
    let begun = Instant::now();
    let kept = KeptFabric {
        hosts: vec![
            (mac(1).to_string(), ip(A), 3, vec![ip("10.0.0.1"), ip("10.0.0.2")]),
            ("no MAC address".into(), ip(A), 0, vec![ip("10.0.0.3")]),
        ],
        prefixes: vec![
            ("10.9.0.0/24".into(), ip(B), mac(0x21).to_string()),
            ("no prefix".into(), ip(B), String::new()),
        ],
        members: vec![ip(A)],
    };
    let mut memory = Memory::new([(Vni(100), &kept), (Vni(200), &kept)].into_iter(), begun);
    memory.only(|vni| vni == Vni(100));
    let of = |m: &Memory| {
        let heard: Vec<Heard> = m.of(Vni(100)).0.cloned().collect();
        let d = decided(&heard, &Fabric::default());
        let hosts: Vec<_> =
            d.fabric.hosts.values().flat_map(|h| h.addresses.iter().map(|a| (a.to_string(), h.stale))).collect();
        (hosts, d.fabric.prefixes.values().map(|far| far.stale).collect::<Vec<_>>(), d.fabric.members.len())
    };
    let both = |first, second| vec![("10.0.0.1".to_string(), first), ("10.0.0.2".to_string(), second)];
    assert_eq!(of(&memory), (both(true, true), vec![true], 1));
    assert_eq!(memory.of(Vni(200)).0.count(), 0);
    // The daemon says a part, and takes it back: that goes.
    let say = |heard: Vec<Heard>| {
        let mut sorted = node::routing::evpn::heard::Sorted::default();
        sorted.vpcs.insert(Vni(100), (heard, Default::default()));
        sorted
    };
    assert!(memory.hear(say(vec![host(1, "10.0.0.1", A, 3), prefix("10.9.0.0/24", 0x21, B)])));
    assert_eq!(of(&memory).1, [false]);
    assert!(!memory.hear(say(vec![host(1, "10.0.0.1", A, 3), prefix("10.9.0.0/24", 0x21, B)])), "nothing new");
    assert!(memory.hear(say(vec![])));
    assert_eq!(of(&memory), (vec![("10.0.0.2".into(), true)], vec![], 1));
    // The daemon dies: what it said last is stale from then on.
    memory.hear(say(vec![host(1, "10.0.0.1", A, 3)]));
    let died = begun + Duration::from_secs(60);
    assert!(memory.lose(died) && !memory.lose(died));
    assert_eq!(of(&memory).0, both(true, true));
    assert_eq!(memory.pass(begun + HOLD - Duration::from_millis(1)), 0);
    assert_eq!(memory.pass(begun + HOLD), 2, "an address and a tunnel end, of before the start");
    assert_eq!(of(&memory).0, [("10.0.0.1".to_string(), true)]);
    assert_eq!(memory.pass(died + HOLD), 1);
    assert_eq!(of(&memory), (vec![], vec![], 0));
    // A MAC address that is said elsewhere now is not remembered where it was.
    let mut memory = Memory::new([(Vni(100), &kept)].into_iter(), begun);
    memory.hear(say(vec![host(1, "", B, 4)]));
    assert_eq!(of(&memory).0, []);
}

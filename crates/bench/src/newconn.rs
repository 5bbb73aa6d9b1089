// SPDX-License-Identifier: Apache-2.0
//! `new-connections`: first packets of new UDP connections from VMs to the Internet, through the Rust path, memory to memory.
//!
//! Each packet is of a connection that is new in every respect: another port of its VM (so another public port is chosen), another
//! remote endpoint. What is paid for: the whole packet path, the route, the public port, the session with both keys and its
//! timer, and the packet rewritten and without its tunnel. Samples follow each other on a growing table; nothing expires meanwhile.
//! TCP handshakes are reported apart: three packets each, two out and one in, of which the first makes the session.
use crate::setup;
use crate::user::{forward_staged, BATCH, BUFFER};
use crate::workload::{Workload, FIRST_VNI, FRAME, PACKET_SLOT};
use crate::{cpu, Context, Error, Goal, Report};
use abi::{IfIndex, Vni};
use conntrack::nat::{Filtering, NatSpec, PoolSpec, SnatSpec, Translator};
use conntrack::{HeapMemory, Options, SessionMemory, TenantLimits, Tracker};
use gateway::{Batch, Connections, Frame, Gateway, Verdict, HEADROOM};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tables::{Commit, Prefix, PublicPrefix, Route, RoutesChange, Target, TenantChange, Writer};
use wire::{ipv4, tcp};

pub(crate) const VPCS: u32 = 1000;
pub(crate) const VMS: u32 = 10;
/// Connections of a sample.
const EACH: u32 = 400_000;
/// TCP handshakes of a sample.
const HANDSHAKES: u32 = 64_000;
/// First of 65,536 public addresses.
const FIRST_PUBLIC: u32 = 0x6440_0000;

/// A gateway whose VPCs go to the Internet over one pool of 65,536 addresses.
pub(crate) fn internet(workload: &Workload, connections: u32, salt: u64) -> Result<(Writer, Arc<Connections>), Error> {
    let (mut writer, _) = setup::heap(workload)?;
    let route = Route { prefix: Prefix::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0), target: Target::Internet };
    let tenants = (0..VPCS).map(|vpc| TenantChange {
        vni: Vni(FIRST_VNI + vpc),
        routes: RoutesChange::Delta { remove: vec![], add: vec![route] },
        ..TenantChange::default()
    });
    let commit = Commit { tenants: tenants.collect(), ..Commit::default() };
    writer.commit(&commit).map_err(Error::failed("a commit"))?;
    let router = std::net::IpAddr::V4(Ipv4Addr::from_bits(crate::workload::VTEP & !0xff | 253));
    let (dmac, smac) = (Some(crate::workload::ROUTER_MAC), crate::workload::UPLINK_MAC);
    let spec = tables::NexthopSpec { addr: router, ifindex: IfIndex(1), dmac, smac, mtu: 1500 };
    let nexthop = writer.set_nexthop(&spec).map_err(Error::io("writing a next hop"))?;
    let group = writer.set_group(None, &[nexthop]).map_err(Error::io("writing a group"))?;
    writer.set_internet(Some(group), None);
    let public = Prefix::new_assert(Ipv4Addr::from_bits(FIRST_PUBLIC).into(), 16);
    writer
        .set_public(&[PublicPrefix { prefix: public, accepts: false }])
        .map_err(Error::io("writing public addresses"))?;
    for vpc in 0..VPCS {
        writer.set_policy(Vni(FIRST_VNI + vpc), abi::POLICY_NAT);
    }
    let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().map_err(Error::io("reserving session memory"))?);
    let tenant = TenantLimits { sessions: connections, vm_sessions: connections, half_open: connections };
    let options = Options { sessions: connections, initial: connections, salt, tenant, ..Options::default() };
    let tracker = Tracker::new(memory, options, 1).map_err(Error::failed("making the tracker"))?;
    let translator = Translator::new(salt);
    let pool = PoolSpec {
        name: "bench".into(),
        ranges: vec![(FIRST_PUBLIC, FIRST_PUBLIC + 0xffff)],
        ports: (1024, 65535),
        block: 64,
        reuse: false,
        shares: None,
    };
    let snats = (0..VPCS).map(|vpc| SnatSpec {
        vni: Vni(FIRST_VNI + vpc),
        pools: vec![0],
        filtering: Filtering::default(),
        ipv6: vec![],
        ipv6_inbound: false,
        ports_max: u64::MAX,
        vm_ports_max: 65_536,
    });
    translator.configure(&NatSpec { pools: vec![pool], snats: snats.collect(), elastics: vec![] });
    Ok((writer, Arc::new(Connections::new(Arc::new(tracker), Arc::new(translator), Default::default(), None))))
}

/// Turns a packet between VMs into the first one of connection n: its VM's n-th port, an Internet address of its own.
fn first_packet(frame: &mut [u8], n: u32) {
    let port = 1024 + (n / (VPCS * VMS)) as u16;
    let remote = 0x0800_0000 | (abi::hash1(n.into(), 3) >> 40) as u32;
    let same = u16::from_be_bytes([frame[86], frame[87]]);
    aim(frame, remote, port, same);
}

/// Writes the first packets of connections from `first` on into slots. Neighbours in time are of different VMs.
pub(crate) fn stage(packets: &[u8], staged: &mut [u8], first: u32) {
    for (n, slot) in (first..).zip(staged.chunks_exact_mut(PACKET_SLOT)) {
        let from = n % (VPCS * VMS);
        slot.copy_from_slice(&packets[from as usize * PACKET_SLOT..][..PACKET_SLOT]);
        first_packet(slot, n);
    }
}

/// Gives the inner packet of a frame another destination and other ports.
pub(crate) fn aim(frame: &mut [u8], to: u32, from_port: u16, port: u16) {
    frame[80..84].copy_from_slice(&to.to_be_bytes());
    frame[84..86].copy_from_slice(&from_port.to_be_bytes());
    frame[86..88].copy_from_slice(&port.to_be_bytes());
    frame[74..76].fill(0);
    let sum: u32 = frame[64..84].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[74..76].copy_from_slice(&checksum.to_be_bytes());
}

/// The IPv4 header checksum of a frame anew; its IP header begins at `at`.
fn mend(frame: &mut [u8], at: usize) {
    ipv4::Packet::new_unchecked(&mut frame[at..at + 20]).fill_checksum();
}

/// Writes a TCP segment without data behind the IPv4 header at `at`.
pub(crate) fn tcp(frame: &mut [u8], at: usize, segment: tcp::Repr) -> Result<(), Error> {
    frame[at + 2..at + 4].copy_from_slice(&40u16.to_be_bytes());
    frame[at + 9] = 6;
    mend(frame, at);
    let ip = ipv4::Packet::new_unchecked(&frame[at..at + 20]);
    let pseudo = tcp::Repr::pseudo_v4(ip.src(), ip.dst(), 20);
    segment.emit(pseudo, &mut frame[at + 20..at + 40]).map_err(Error::failed("a TCP segment"))
}

/// What came out of one step of a handshake: whole frames.
type Frames = Vec<Vec<u8>>;

/// Puts frames through the gateway, a batch at a time, all of which must be forwarded; adds the CPU time that this takes.
fn through(gateway: &mut Gateway, frames: &Frames, ns: &mut u64) -> Result<Frames, Error> {
    let mut out = Vec::with_capacity(frames.len());
    let mut buffers = vec![0u8; BATCH * BUFFER];
    for part in frames.chunks(BATCH) {
        let begin = cpu::thread_time();
        let mut batch = Batch::new();
        for (frame, buffer) in part.iter().zip(buffers.chunks_exact_mut(BUFFER)) {
            buffer[HEADROOM..HEADROOM + frame.len()].copy_from_slice(frame);
            let _ = batch.push(Frame::new(buffer, HEADROOM, frame.len(), IfIndex(1)));
        }
        gateway.process(&mut batch, 1_000_000_000);
        *ns += cpu::thread_time() - begin;
        for f in batch.frames() {
            if !matches!(f.verdict, Verdict::Forward { .. }) {
                return Err(Error::Failed {
                    what: "a TCP handshake".into(),
                    why: format!("a step was not forwarded: {:?}", f.verdict),
                });
            }
            out.push(f.data().to_vec());
        }
    }
    Ok(out)
}

/// TCP handshakes, three packets each: SYN out, SYN-ACK in, ACK out. How many a second of CPU time.
fn handshakes(gateway: &mut Gateway, packets: &[u8], from: u32) -> Result<f64, Error> {
    const IP: usize = 14;
    const INNER_IP: usize = 64;
    let (syn, syn_ack, ack) = (tcp::SYN, tcp::SYN | tcp::ACK, tcp::ACK);
    let mut first = Frames::new();
    for n in from..from + HANDSHAKES {
        let at = (n % (VPCS * VMS)) as usize * PACKET_SLOT;
        let mut frame = packets[at..at + FRAME].to_vec();
        first_packet(&mut frame, n);
        let src_port = u16::from_be_bytes([frame[84], frame[85]]);
        tcp(&mut frame, INNER_IP, tcp::Repr { src_port, dst_port: 80, seq: n, ack: 0, flags: syn, window: 60_000 })?;
        first.push(frame);
    }
    let mut ns = 0;
    let outside = through(gateway, &first, &mut ns)?;
    let mut answers = Frames::new();
    for (frame, n) in outside.iter().zip(from..) {
        let mut answer = frame.clone();
        let ip = ipv4::Packet::new_unchecked(&frame[IP..IP + 20]);
        answer[IP + 12..IP + 16].copy_from_slice(&ip.dst().to_be_bytes());
        answer[IP + 16..IP + 20].copy_from_slice(&ip.src().to_be_bytes());
        answer[..6].copy_from_slice(&frame[6..12]);
        answer[6..12].copy_from_slice(&frame[..6]);
        let dst_port = u16::from_be_bytes([frame[IP + 20], frame[IP + 21]]);
        let segment =
            tcp::Repr { src_port: 80, dst_port, seq: !n, ack: n.wrapping_add(1), flags: syn_ack, window: 60_000 };
        tcp(&mut answer, IP, segment)?;
        answers.push(answer);
    }
    through(gateway, &answers, &mut ns)?;
    for (frame, n) in first.iter_mut().zip(from..) {
        let src_port = u16::from_be_bytes([frame[84], frame[85]]);
        let (seq, reply) = (n.wrapping_add(1), (!n).wrapping_add(1));
        tcp(frame, INNER_IP, tcp::Repr { src_port, dst_port: 80, seq, ack: reply, flags: ack, window: 60_000 })?;
    }
    through(gateway, &first, &mut ns)?;
    Ok(f64::from(HANDSHAKES) * 1e9 / ns as f64)
}

/// `new-connections`.
pub fn new_connections(context: &Context) -> Result<Report, Error> {
    let all = EACH * (context.samples as u32 + 1);
    let tcps = HANDSHAKES * context.samples as u32;
    context.say(&format!("new-connections: {all} connections of {} VMs", VPCS * VMS));
    let workload = Workload::region(VPCS, VMS, 64, context.seed);
    let (writer, nat) = internet(&workload, all + tcps + 1024, context.seed)?;
    let mut gateway = Gateway::with_connections(writer.tables(), writer.tables().slots().1, nat.clone());
    let packets = workload.packets_from_each(context.seed);
    let cpu_of = cpu::count() - 1;
    cpu::pin(0, cpu_of).map_err(Error::io("pinning the worker"))?;
    let (mut rates, mut next) = (Vec::new(), 0u32);
    let mut staged = vec![0u8; EACH as usize * PACKET_SLOT];
    let mut buffers = vec![0u8; BATCH * BUFFER];
    for sample in 0..=context.samples {
        context.say(&format!("new-connections: sample {sample} of {}", context.samples));
        stage(&packets, &mut staged, next);
        next += EACH;
        let (ns, forwarded) = forward_staged(&mut gateway, &staged, &mut buffers);
        if forwarded != EACH {
            let why = format!("{forwarded} of {EACH} first packets were forwarded");
            return Err(Error::Failed { what: "new-connections".into(), why });
        }
        // The first sample fills caches and makes the public addresses' blocks.
        if sample > 0 {
            rates.push(f64::from(EACH) * 1e9 / ns as f64);
        }
    }
    let mut tcp_rates = Vec::new();
    for sample in 0..context.samples {
        context.say(&format!("new-connections: TCP handshakes, sample {} of {}", sample + 1, context.samples));
        tcp_rates.push(handshakes(&mut gateway, &packets, all + HANDSHAKES * sample as u32)?);
    }
    let all = all + tcps;
    let stats = nat.tracker().stats();
    if stats.sessions != u64::from(all) {
        return Err(Error::Failed {
            what: "new-connections".into(),
            why: format!("{} sessions of {all}", stats.sessions),
        });
    }
    let mut report =
        Report::new("new-connections", "per second", rates, Some(Goal::AtLeast(1e6)), "one core, memory to memory");
    report
        .compared("A connection is its first packet of UDP; a TCP connection takes three packets to begin (tcp_handshakes_per_s).")
        .detail_median("tcp_handshakes_per_s", &tcp_rates)
        .detail("packets_of_a_handshake", 3)
        .detail("sessions", stats.sessions)
        .detail("vms", VPCS * VMS)
        .detail("memory", "pages of session memory are made before the first sample, as at a node's start")
        .detail(
        "workload",
        "UDP, each packet another port of its VM and another remote endpoint; 1,000 VPCs of 10 VMs; one pool of 65,536 addresses",
    );
    Ok(report)
}

// SPDX-License-Identifier: Apache-2.0
//! `filter-compile` and `filter-first`: security groups at their limits, 100 groups of 10,000 rules. What it costs to compile them, and
//! how many first packets a second they judge. (How soon a packet meets a changed rule: `filter_change`.)
//!
//! Of the rules of a group one half is about each direction: hosts with a port, /24s with a hundred ports, /20s with a thousand, and a
//! wide one that the measured connections meet. None hides another, as `validate` demands.
use crate::newconn::aim;
use crate::user::{forward_staged, BATCH, BUFFER};
use crate::workload::{Vm, Workload, FIRST_VNI, PACKET_SLOT};
use crate::{cpu, report, setup, snapshot, Context, Error, Goal, Report};
use abi::Vni;
use conntrack::nat::Translator;
use conntrack::{HeapMemory, Options, SessionMemory, TenantLimits, Tracker};
use filter::{Filter, GroupSpec, Member, Rule, Ruleset, Side, GROUP_RULES_MAX};
use gateway::{Connections, Gateway};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;
use tables::Writer;

pub(crate) const GROUPS: u32 = 100;
const VMS: u32 = 100;
/// The port of the connections that are measured.
pub(crate) const PORT: u16 = 7000;
/// A port that every group denies.
const DENIED: u16 = 7001;
/// First packets of a sample.
const EACH: u32 = 200_000;

/// Rule `i` of a group, as it is written. Every rule is of other addresses or other services than those of its direction before it.
fn rule(group: u32, i: u32) -> String {
    let (direction, n) = if i.is_multiple_of(2) { ("ingress", i / 2) } else { ("egress", i / 2) };
    let action = if n % 3 == 0 { "deny" } else { "allow" };
    match n {
        0 => return format!("{direction} deny udp/{DENIED} any priority 1"),
        1 => return format!("{direction} allow udp/{PORT} 10.0.0.0/8 priority 2000"),
        _ => {}
    }
    // An odd factor goes through all numbers of a power of two without repeating one.
    let spot = |bits: u32| n.wrapping_mul(0x9e37_79b1).wrapping_add(group * 77) & ((1 << bits) - 1);
    let prefix = |bits: u32, len: u32| Ipv4Addr::from_bits(10 << 24 | spot(bits) << (32 - len));
    match n % 10 {
        0 => format!("{direction} {action} tcp/2000-2999 {}/20", prefix(12, 20)),
        1 | 2 => format!("{direction} {action} udp/5000-5099 {}/24", prefix(16, 24)),
        _ => format!(
            "{direction} {action} tcp/{} {}/32",
            [22, 25, 53, 80, 110, 143, 443, 993, 3306, 8080][(n / 10 % 10) as usize],
            prefix(24, 32)
        ),
    }
}

pub(crate) fn rules(group: u32, count: u32) -> Vec<String> {
    (0..count).map(|i| rule(group, i)).collect()
}

pub(crate) fn document(group: u32, rules: &[String]) -> String {
    let mut out = String::new();
    let list = rules.iter().map(|r| format!("\"{r}\"")).collect::<Vec<_>>().join(",");
    let _ = writeln!(
        out,
        "{{\"apiVersion\":\"tunny/v1\",\"kind\":\"SecurityGroup\",\"metadata\":{{\"name\":\"g{group}\"}},\"spec\":{{\"rules\":[{list}]}}}}"
    );
    out
}

/// Every VM of a VPC in the group of its number.
pub(crate) fn bindings(workload: &Workload) -> String {
    let mut out = String::new();
    for group in 0..GROUPS {
        let vms = workload.vms.iter().filter(|v| v.vni == FIRST_VNI + group);
        let names =
            vms.map(|v| format!("\"v{group}/{}\"", Ipv4Addr::from_bits(v.address))).collect::<Vec<_>>().join(",");
        let _ = writeln!(
            out,
            "{{\"apiVersion\":\"tunny/v1\",\"kind\":\"SecurityBinding\",\"metadata\":{{\"name\":\"b{group}\"}},\
             \"spec\":{{\"vpc\":\"v{group}\",\"vms\":[{names}],\"groups\":[\"g{group}\"]}}}}"
        );
    }
    out
}

/// 1M rules as documents.
pub(crate) fn all_rules() -> String {
    (0..GROUPS).map(|g| document(g, &rules(g, GROUP_RULES_MAX as u32))).collect()
}

fn specs(each: usize) -> Result<Vec<Arc<GroupSpec>>, Error> {
    let parse = |r: String| r.parse::<Rule>().map_err(Error::failed("a rule"));
    let group = |g: u32| {
        let rules = rules(g, each as u32).into_iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Arc::new(GroupSpec { name: format!("g{g}").into(), rules }))
    };
    (0..GROUPS).map(group).collect()
}

fn compiled(specs: &[Arc<GroupSpec>]) -> Vec<Arc<Ruleset>> {
    specs.iter().map(|spec| Arc::new(Ruleset::new(spec.clone()))).collect()
}

pub(crate) fn region(context: &Context) -> Workload {
    Workload::region(GROUPS, VMS, 64, context.seed)
}

fn members(workload: &Workload) -> Vec<(Vni, Arc<Vec<Member>>)> {
    let member = |v: &crate::workload::Vm| Member {
        prefix: filter::Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(v.address)), 32),
        groups: vec![format!("g{}", v.vni - FIRST_VNI).into()],
    };
    let of = |vni: u32| workload.vms.iter().filter(|v| v.vni == vni).map(member).collect::<Vec<_>>();
    (FIRST_VNI..FIRST_VNI + GROUPS).map(|vni| (Vni(vni), Arc::new(of(vni)))).collect()
}

/// `filter-compile`.
pub fn filter_compile(context: &Context) -> Result<Report, Error> {
    context.say("filter-compile: 1M rules");
    let (specs, members) = (specs(GROUP_RULES_MAX)?, members(&region(context)));
    let mut samples = Vec::new();
    for n in 0..context.samples {
        context.say(&format!("filter-compile: sample {} of {}", n + 1, context.samples));
        let start = Instant::now();
        let filter = Filter::new(&compiled(&specs), &members, &Filter::default());
        samples.push(start.elapsed().as_secs_f64());
        drop(filter);
    }
    context.say("filter-compile: what validate asks of the rules");
    let start = Instant::now();
    let faults: usize = specs.iter().map(|s| s.faults(usize::MAX).len()).sum();
    let checked = start.elapsed().as_secs_f64();
    if faults > 0 {
        return Err(Error::Failed { what: "filter-compile".into(), why: format!("{faults} rules are refused") });
    }
    let filter = Filter::new(&compiled(&specs), &members, &Filter::default());
    let bytes: usize = filter.groups().map(|g| g.bytes()).sum();
    context.say("filter-compile: from the text of the documents");
    let text = snapshot::ndjson(&region(context)) + &all_rules() + &bindings(&region(context));
    let start = Instant::now();
    let plan = snapshot::model(&text)?.filter();
    let read = start.elapsed().as_secs_f64();
    drop(Filter::new(&plan.groups, &plan.members, &Filter::default()));
    let whole = start.elapsed().as_secs_f64();
    let mut report =
        Report::new("filter-compile", "s", samples, Some(Goal::AtMost(5.0)), "goal: 1M rules into flat tables in 5 s");
    report
        .detail("rules", GROUPS as usize * GROUP_RULES_MAX)
        .detail("compiled_with_check_for_rules_that_never_match_s", report::round(checked))
        .detail("read_and_validated_from_text_s", report::round(read))
        .detail("from_text_to_tables_s", report::round(whole))
        .detail("text_bytes", text.len())
        .detail("bytes_a_rule", report::round(bytes as f64 / (GROUPS as usize * GROUP_RULES_MAX) as f64))
        .detail("workload", "100 groups of 10,000 rules, half of each direction; 100 VPCs of 100 VMs");
    Ok(report)
}

/// Tables and trackers of the region under groups of `rules` rules, for so many connections.
pub(crate) fn under_groups(
    workload: &Workload,
    rules: usize,
    connections: u32,
    salt: u64,
) -> Result<(Writer, Arc<Connections>), Error> {
    let (mut writer, _) = setup::heap(workload)?;
    for vpc in 0..GROUPS {
        writer.set_policy(Vni(FIRST_VNI + vpc), abi::POLICY_FILTER);
    }
    let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().map_err(Error::io("reserving session memory"))?);
    let tenant = TenantLimits { sessions: connections, vm_sessions: connections, half_open: connections };
    let options = Options { sessions: connections + 1024, initial: connections, salt, tenant, ..Options::default() };
    let tracker = Tracker::new(memory, options, 1).map_err(Error::failed("making the tracker"))?;
    let nat = Arc::new(Connections::new(Arc::new(tracker), Arc::new(Translator::new(1)), Default::default(), None));
    nat.set_filter(Arc::new(Filter::new(&compiled(&specs(rules)?), &members(workload), &Filter::default())));
    Ok((writer, nat))
}

/// Writes the first packets of connections from `first` on into slots, to this port. Neighbours in time are of different VMs, each with a
/// mate of its VPC.
pub(crate) fn stage(workload: &Workload, packets: &[u8], staged: &mut [u8], first: u32, port: u16) {
    let vms = workload.vms.len() as u32;
    for (n, slot) in (first..).zip(staged.chunks_exact_mut(PACKET_SLOT)) {
        let from = n % vms;
        slot.copy_from_slice(&packets[from as usize * PACKET_SLOT..][..PACKET_SLOT]);
        aim(slot, mate(workload, from).address, 1024 + (n / vms) as u16, port);
    }
}

fn mate(workload: &Workload, n: u32) -> Vm {
    workload.vms[(n / VMS * VMS + (n + 1) % VMS) as usize]
}

/// `filter-first`.
pub fn filter_first(context: &Context) -> Result<Report, Error> {
    let workload = region(context);
    let all = EACH * (context.samples as u32 + 1);
    context.say(&format!("filter-first: {all} connections under 1M rules"));
    let (writer, nat) = under_groups(&workload, GROUP_RULES_MAX, all, context.seed)?;
    let mut gateway = Gateway::with_connections(writer.tables(), writer.tables().slots().1, nat.clone());
    let packets = workload.packets_from_each(context.seed);
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the worker"))?;
    let vms = workload.vms.len() as u32;
    let mut staged = vec![0u8; EACH as usize * PACKET_SLOT];
    let mut buffers = vec![0u8; BATCH * BUFFER];
    let (mut rates, mut refusals, mut lookups) = (vec![], vec![], vec![]);
    for sample in 0..=context.samples as u32 {
        context.say(&format!("filter-first: sample {sample} of {}", context.samples));
        stage(&workload, &packets, &mut staged, sample * EACH, PORT);
        let (ns, forwarded) = forward_staged(&mut gateway, &staged, &mut buffers);
        if forwarded != EACH {
            let why = format!("{forwarded} of {EACH} first packets were forwarded");
            return Err(Error::Failed { what: "filter-first".into(), why });
        }
        stage(&workload, &packets, &mut staged, sample * EACH, DENIED);
        let (refused_ns, forwarded) = forward_staged(&mut gateway, &staged, &mut buffers);
        if forwarded != 0 {
            return Err(Error::Failed {
                what: "filter-first".into(),
                why: format!("{forwarded} refused packets were forwarded"),
            });
        }
        let (rules, begin) = (nat.rules(), cpu::thread_time());
        let side = |v: Vm| Side { vni: Some(Vni(v.vni)), addr: IpAddr::V4(Ipv4Addr::from_bits(v.address)) };
        let evaluated = |n: u32| {
            rules.judge(
                side(workload.vms[(n % vms) as usize]),
                side(mate(&workload, n % vms)),
                filter::service(17, PORT),
            )
        };
        let allowed = (0..EACH).filter(|n| evaluated(*n).deny.is_none()).count();
        let lookup_ns = cpu::thread_time() - begin;
        // The first sample fills caches.
        if sample > 0 && allowed == EACH as usize {
            let rate = |ns: u64| f64::from(EACH) * 1e9 / ns as f64;
            rates.push(rate(ns));
            refusals.push(rate(refused_ns));
            lookups.push(rate(lookup_ns));
        }
    }
    let against = "one core, memory to memory; two groups of 10,000 rules asked for each, a session made";
    let mut report = Report::new("filter-first", "per second", rates, Some(Goal::AtLeast(1e6)), against);
    report
        .detail_median("refused_per_s", &refusals)
        .detail_median("judgements_alone_per_s", &lookups)
        .detail("sessions", nat.tracker().stats().sessions)
        .detail("workload", "UDP, 100 VPCs of 100 VMs, each packet another port of its VM; 100 groups of 10,000 rules");
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_hides_another() {
        let rules: Vec<Rule> = rules(3, GROUP_RULES_MAX as u32).iter().map(|r| r.parse().unwrap()).collect();
        let spec = GroupSpec { name: "g".into(), rules };
        assert_eq!(spec.faults(5), []);
    }
}

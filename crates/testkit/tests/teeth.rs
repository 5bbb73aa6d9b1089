// SPDX-License-Identifier: Apache-2.0
//! Do the packet cases bite? An engine that lies in one small thing must make a case fail, with words that say what.

use abi::{DropReason, PuntReason};
use conntrack_compact::{Shared, Spec, TableKind};
use std::path::Path;
use std::sync::Arc;
use tables::Tables;
use testkit::case::{self, Case, Counter};
use testkit::region::Region;
use testkit::runner::{run_case, run_case_with, End, Engine, Seen};
use testkit::user::UserEngine;

/// The Rust path, and what is done to its results.
struct Liar {
    honest: UserEngine,
    lie: fn(&mut Seen),
    punts: bool,
    leaks: bool,
    miscounts: bool,
}

impl Engine for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
    fn punts(&self) -> bool {
        self.punts
    }
    fn start(&mut self, region: &Region) -> Result<(), String> {
        self.honest.start(region)
    }
    fn change(&mut self, region: &Region) -> Result<(), String> {
        self.honest.change(region)
    }
    fn run(&mut self, frame: &[u8], port: u32, now_ns: u64) -> Result<Seen, String> {
        let mut seen = self.honest.run(frame, port, now_ns)?;
        (self.lie)(&mut seen);
        Ok(seen)
    }
    fn count(&self, counter: &Counter) -> Result<Vec<u64>, String> {
        let mut values = self.honest.count(counter)?;
        values[0] += u64::from(self.miscounts);
        Ok(values)
    }
    fn conserved(&self) -> Result<(), String> {
        if self.leaks {
            let mut s = self.honest.reader().ok_or("not started")?.stats_total();
            s.rx += 1;
            return testkit::user::conserved(&s, false);
        }
        self.honest.conserved()
    }
    fn tick(&mut self, now_ns: u64) {
        self.honest.tick(now_ns);
    }

    fn migrate(&mut self, now_ns: u64) {
        self.honest.migrate(now_ns);
    }
    fn split(&mut self, bytes: u32) -> bool {
        self.honest.split(bytes)
    }
    fn reader(&self) -> Option<&Tables> {
        self.honest.reader()
    }
    fn states(&self) -> Option<Arc<Shared>> {
        self.honest.states()
    }
    fn dump(&self) -> String {
        self.honest.dump()
    }
}

fn case_of(steps: &str) -> Case {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets"));
    let text = format!("tables from region.tables\ncase teeth\n{steps}");
    case::parse("teeth", &text, &|f| std::fs::read_to_string(dir.join(f)).ok()).unwrap().remove(0)
}

const FORWARDED: &str =
    "  in eth h1 > gw / ip h1 > gw / udp 50000 > 4789 / vxlan red / eth a > red / ip a > b / udp 1 > 2
  out port 2 eth port2 > h2 / ip gw > h2 df / udp flow > 4789 / vxlan red / eth red > b / ip a > b ttl=63 / udp 1 > 2
  count vm b packets 1 bytes 42\n";
const EXPIRED: &str = "  in eth h1 > gw / ip h1 > gw / udp 50000 > 4789 / vxlan red / eth a > red / ip a > b ttl=1 / udp 1 > 2
  drop ttl_expired
  generated eth gw > h1 / ip gw > h1 df / udp flow > 4789 / vxlan red / eth red > a / ip red > a / icmp time-exceeded / ip a > b ttl=1 / udp 1 > 2\n";
const PASSED: &str = "  in eth h1 > gw / ip h1 > gw / tcp 1 > 22 syn\n  pass\n";

fn honest() -> Liar {
    Liar { honest: UserEngine::default(), lie: |_| {}, punts: false, leaks: false, miscounts: false }
}

fn complaint(mut engine: Liar, steps: &str) -> String {
    run_case(&mut engine, &case_of(steps)).expect_err("the lie must be seen")
}

#[test]
fn an_honest_engine_passes() {
    for steps in [FORWARDED, EXPIRED, PASSED] {
        assert_eq!(run_case(&mut honest(), &case_of(steps)), Ok(true));
    }
}

#[test]
fn every_single_byte_of_the_frame_sent_matters() {
    let sent = 92;
    for at in 0..sent {
        // The position travels in a static, because the lie is a plain function.
        AT.store(at, std::sync::atomic::Ordering::Relaxed);
        let lie = |seen: &mut Seen| {
            if let End::Forward(_, b) = &mut seen.end {
                b[AT.load(std::sync::atomic::Ordering::Relaxed)] ^= 0x10;
            }
        };
        let text = complaint(Liar { lie, ..honest() }, FORWARDED);
        assert!(text.contains(&format!("first difference at byte {at}:")), "{text}");
    }
}

static AT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[test]
fn lies_are_told_by_name() {
    let lies: &[(&str, fn(&mut Seen), &str)] = &[
        (FORWARDED, |s| s.end = End::Forward(Some(1), frame(s)), "sent by port Some(1), expected port 2"),
        (FORWARDED, |s| s.end = End::Answer(Some(2), frame(s)), "expected out, got"),
        (FORWARDED, |s| s.end = End::Drop(DropReason::VmUnknown), "drop vm_unknown"),
        (FORWARDED, |s| s.end = End::Pass(frame(s)), "expected out, got"),
        (FORWARDED, |s| s.end = End::Forward(Some(2), [frame(s), vec![0]].concat()), "pad 1"),
        (FORWARDED, |s| s.generated.push((1, frame(s))), "expected 0 generated frames"),
        (EXPIRED, |s| s.end = End::Drop(DropReason::VmUnknown), "expected drop ttl_expired"),
        (EXPIRED, |s| s.generated.clear(), "expected 1 generated frames"),
        (EXPIRED, |s| s.generated[0].0 = 2, "generated frame 1 sent by port 2"),
        (EXPIRED, |s| s.generated[0].1[70] ^= 1, "generated frame 1 differs"),
        (PASSED, |s| s.end = End::Pass(vec![0; 54]), "the frame passed to the host differs"),
    ];
    for (steps, lie, words) in lies {
        let text = complaint(Liar { lie: *lie, ..honest() }, steps);
        assert!(text.contains(words), "should say `{words}`:\n{text}");
        assert!(text.starts_with("teeth:3: case \"teeth\" on engine liar"), "{text}");
        assert!(
            text.contains("vm a red 10.0.0.5 fd00:64::5") && text.contains("vpc red (100): routes"),
            "no tables in:\n{text}"
        );
    }
}

fn frame(seen: &Seen) -> Vec<u8> {
    match &seen.end {
        End::Forward(_, b) | End::Answer(_, b) | End::Pass(b) => b.clone(),
        End::Drop(_) => Vec::new(),
    }
}

#[test]
fn needless_and_missing_punts_are_told() {
    let needless = Liar { punts: true, lie: |s| s.punt = Some(PuntReason::IcmpDue), ..honest() };
    assert!(complaint(needless, FORWARDED).contains("expected no punt, got icmp_due"));
    let missing = Liar { punts: true, ..honest() };
    assert!(complaint(missing, &EXPIRED.replace("  drop", "  punt icmp_due\n  drop"))
        .contains("expected icmp_due, got no punt"));
}

/// With a state table the case does not say what is handed over: Fig. 3 and the state do.
#[test]
fn what_a_state_table_hands_over_is_checked() {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets/filter"));
    let packet = |flags: &str| {
        let inner = |ttl: &str, eth: &str| format!("eth {eth} / ip b > a{ttl} / tcp 1000 > 80 {flags}");
        format!(
            "  in port 2 eth h2 > port2 / ip h2 > gw / udp 50000 > 4789 / vxlan red / {}\n  out port 1 eth gw > h1 / ip gw > h1 df / udp flow > 4789 / vxlan red / {}\n",
            inner("", "b > red"),
            inner(" ttl=63", "red > a")
        )
    };
    let text = format!("tables from region.tables\ncase teeth\n{}{}", packet("syn seq=100"), packet("syn seq=100"));
    let case = case::parse("teeth", &text, &|f| std::fs::read_to_string(dir.join(f)).ok()).unwrap().remove(0);
    let with = |lie: fn(&mut Seen)| {
        run_case_with(&mut Liar { punts: true, lie, ..honest() }, &case, Spec::new(TableKind::Digest, 64, 64))
    };
    let missing = with(|_| {}).expect_err("nothing is handed over");
    assert!(missing.contains("expected session_new, got no punt"), "{missing}");
    let wrong = with(|s| s.punt = Some(PuntReason::SessionNew)).expect_err("the connection is known");
    assert!(wrong.contains("expected session_control, got session_new"), "{wrong}");
}

#[test]
fn counters_and_the_conservation_law_are_checked() {
    assert!(complaint(Liar { miscounts: true, ..honest() }, FORWARDED).contains("should be [1, 42], but is [2, 42]"));
    assert!(complaint(Liar { leaks: true, ..honest() }, FORWARDED).contains("the conservation law is broken"));
}

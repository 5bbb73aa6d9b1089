// SPDX-License-Identifier: Apache-2.0
//! A node whose engine is changed while packets run, and what `tunny capture` sees in each. Needs root.

mod region;

use lab::traffic;
use region::{region, Region};
use serde_json::Value;
use std::process::Stdio;

impl Region {
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.tunny(&[args, &["-o", "json"]].concat())).unwrap()
    }

    /// Switches the engine and returns the mode of the first uplink.
    fn switch(&self, engine: &str) -> String {
        let gateways = self.json(&["get", "gateway"]);
        let mut gateway = gateways[0].clone();
        gateway["spec"]["engine"] = engine.into();
        self.apply(&gateway.to_string());
        self.json(&["get", "status"])["uplinks"][0]["mode"].as_str().unwrap().to_string()
    }

    fn reaches(&self, from: &str, to: &str) {
        let ping = traffic::ping(&self.names.namespace(from), to, 3, &[]).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3), "{from} to {to}: {}", ping.output);
    }

    /// The comments of what a capture sees while red-1 asks for green's address.
    fn capture(&self) -> String {
        let file = self.names.dir().join("capture.pcapng");
        let mut command = self.command(&["capture", "--seconds", "1.5", "-w"]);
        let child = command.arg(&file).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let refused = traffic::ping(&self.names.namespace("red-1"), "10.2.0.12", 3, &[]).unwrap();
        assert_eq!(refused.received, 0);
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned()
    }
}

#[test]
fn engines_change_under_way_and_captures_name_reasons_in_each() {
    let Some(region) = region("e") else { return };
    let balanced = |region: &Region| {
        let counters = region.node().unwrap().counters().unwrap();
        assert!(counters.balanced, "{counters:?}");
    };

    region.reaches("blue-1", "10.0.0.12");
    let seen = region.capture();
    assert!(seen.contains("punt reason=icmp_due stage=locate vni="), "the fast path punts what is owed an ICMP error");
    assert!(seen.contains("drop reason=route_none stage=route vni="), "the software path drops it");

    assert_eq!(region.switch("af_packet"), "user");
    assert_eq!(region.json(&["get", "status"])["engine"], "user");
    region.reaches("blue-1", "10.0.0.12");
    region.reaches("blue-2", "fd10:0:0:2::11");
    let seen = region.capture();
    assert!(seen.contains("drop reason=route_none stage=route vni=") && !seen.contains("punt reason"));
    balanced(&region);

    assert_eq!(region.switch("generic"), "generic");
    region.reaches("blue-1", "10.0.0.12");
    assert_eq!(region.switch("native"), "native");
    region.reaches("blue-1", "10.0.0.12");
    assert_eq!(region.json(&["get", "status"])["engine"], "xdp");
    balanced(&region);
}

// SPDX-License-Identifier: Apache-2.0
//! A kind that only tests have: this file and its line in the list are all that it takes.

use super::{Described, Kind, Name, Object};
use crate::broken::stand_ins;
use crate::declare::fields;
use crate::doc::Doc;
use crate::error::Problem;
use crate::forms::*;
use crate::{parse_text, Documents, Model};
use std::net::IpAddr;

fields! {
    /// An address that is probed now and then.
    pub kind Probe {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// The VPC in which it is probed.
        vpc: Name = "spec.vpc", name_of(Kind::Vpc, "name of a Vpc").required(stand_ins::name);
        /// What is probed.
        targets: Vec<IpAddr> = "spec.targets", inner().list(8, "1 to 8 addresses").full();
        /// Seconds between two probes.
        interval: u16 = "spec.timing.interval", int(1, 3600).or(10);
        /// Seconds until no answer is none.
        patience: u16 = "spec.timing.patience", int(1, 60).or(2);
        /// The server that probes, if it is not any.
        nc: Option<Name> = "spec.nc", name_of(Kind::Nc, "name of an Nc").optional();
    }
}

impl Described for Probe {
    const OF_VPCS: bool = true;

    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        format!("{} targets in {}", self.targets.len(), self.vpc)
    }

    fn vpcs(&self) -> &[Name] {
        std::slice::from_ref(&self.vpc)
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<Probe> {
        if self.patience > self.interval {
            doc.wrong("spec.timing.patience", Problem::Value("is longer than the interval".into()));
        }
        Some(self)
    }
}

const BASE: &str = "apiVersion: tunny/v1
kind: Vpc
metadata: {name: red}
spec: {vni: 7}
---
apiVersion: tunny/v1
kind: Nc
metadata: {name: nc1}
spec: {address: 192.0.2.1}
";

const PROBE: &str = "apiVersion: tunny/v1
kind: Probe
metadata:
  name: p
spec:
  vpc: red
  targets: [10.0.0.5, 'fd00::5']
  timing: {interval: 30}
  nc: nc1
";

fn base() -> Model {
    Model::from_documents(&parse_text("base.yaml", BASE).unwrap()).unwrap().0
}

/// What a document on top of the base is told, in the words of `tunny validate`.
fn told(text: &str) -> Vec<String> {
    let (mut docs, mut errors) = (Documents::new(), Vec::new());
    docs.read_text("p.yaml", text, &mut errors);
    crate::every_error(&docs, errors, &mut base()).iter().map(|e| e.to_string()).collect()
}

#[test]
fn a_kind_that_is_declared_in_one_file_is_read_and_written_in_every_form() {
    let mut model = base();
    let plan = model.apply(&parse_text("p.yaml", PROBE).unwrap()).unwrap();
    assert_eq!((plan.tally(Kind::Probe).added, model.counts().of(Kind::Probe)), (1, 1));
    assert!(plan.view(&model, 9).to_string().contains("+ Probe p  2 targets in red\n"));
    let object = model.get(Kind::Probe, "p").unwrap();
    assert!(model.objects(Kind::Probe).eq([object.clone()]));
    let Object::Probe(probe) = &object else { panic!("{object:?}") };
    assert_eq!((probe.interval, probe.patience, probe.targets.len()), (30, 2, 2));
    assert_eq!(
        object.to_ndjson(),
        r#"{"apiVersion":"tunny/v1","kind":"Probe","metadata":{"name":"p"},"spec":{"nc":"nc1","targets":["10.0.0.5","fd00::5"],"timing":{"interval":30,"patience":2},"vpc":"red"}}"#
    );
    for (name, text) in [("p.yaml", object.to_yaml()), ("p.ndjson", object.to_ndjson())] {
        assert_eq!(parse_text(name, &text).unwrap().puts[0].object, object, "{text}");
    }
    let mut bytes = Vec::new();
    model.write_snapshot(&mut bytes, 0).unwrap();
    assert_eq!(Model::from_snapshot(&bytes).unwrap().0.get(Kind::Probe, "p").as_ref(), Some(&object));
    let mut journal = Vec::new();
    crate::binary::objects::put_documents(&mut journal, &parse_text("p.yaml", PROBE).unwrap());
    let back = crate::binary::objects::read_documents(&mut crate::binary::codec::Reader::new(&journal)).unwrap();
    assert_eq!(back.puts[0].object, object);
    let gone = parse_text("p.yaml", PROBE).unwrap().into_deletions();
    assert_eq!(model.apply(&gone).unwrap().tally(Kind::Probe).removed, 1);
    assert_eq!(model.counts().of(Kind::Probe), 0);
}

#[test]
fn bad_input_is_refused_with_line_column_and_field() {
    for (from, to, words) in [
        ("vpc: red", "vpc: blue", "p.yaml:6:8: Probe p: spec.vpc names Vpc `blue`, which does not exist; allowed: name of a Vpc"),
        ("nc: nc1", "nc: nc2", "p.yaml:9:7: Probe p: spec.nc names Nc `nc2`, which does not exist; allowed: name of an Nc"),
        ("interval: 30", "interval: 0", "p.yaml:8:22: Probe p: spec.timing.interval - 0 is out of range; allowed: 1 to 3600"),
        ("interval: 30", "patience: 11", "p.yaml:8:22: Probe p: spec.timing.patience is longer than the interval; allowed: 1 to 60"),
        ("interval: 30", "internal: 3", "p.yaml:8:12: Probe p: spec.timing.internal is unknown (did you mean `interval`?); allowed: interval, patience"),
        ("'fd00::5'", "10.0.0.5", "p.yaml:7:23: Probe p: spec.targets[1] names `10.0.0.5` twice; allowed: 1 to 8 addresses"),
        ("  vpc: red\n", "", "p.yaml:6:3: Probe p: spec.vpc is missing; allowed: name of a Vpc"),
        ("{interval: 30}", "fast", "p.yaml:8:11: Probe p: spec.timing is a single value, which does not fit here; allowed: a mapping of interval, patience"),
    ] {
        assert_eq!(told(&PROBE.replace(from, to)), [words], "{to}");
    }
    let mut model = base();
    model.apply(&parse_text("p.yaml", PROBE).unwrap()).unwrap();
    let gone = parse_text("base.yaml", BASE).unwrap().into_deletions();
    let errors = model.apply(&gone).unwrap_err();
    assert!(errors.iter().any(|e| e.to_string().contains("is still used by Probe `p`")), "{errors:?}");
}

#[test]
fn reference_schema_and_command_line_know_it() {
    assert_eq!(Kind::from_name("probes"), Some(Kind::Probe));
    assert!(Kind::Probe.is_of_vpcs() && Kind::words().ends_with(", probe"));
    let page = crate::reference();
    let section = page.split("\n## Probe\n").nth(1).unwrap();
    assert!(section.trim_start().starts_with("An address that is probed now and then"));
    assert!(section.contains("| `spec.timing.interval` | integer | 10 | 1 to 3600 | Seconds between two probes. |\n"));
    assert!(
        section.contains("| `spec.targets` | list of IP addresses | required | 1 to 8 addresses | What is probed. |\n")
    );
    let schema = crate::json_schema();
    let kinds = schema["oneOf"].as_array().unwrap();
    let probe = kinds.iter().find(|k| k["title"] == "Probe").unwrap();
    assert_eq!(probe["properties"]["spec"]["required"], serde_json::json!(["vpc", "targets"]));
    let interval = &probe["properties"]["spec"]["properties"]["timing"]["properties"]["interval"];
    assert_eq!((&interval["minimum"], &interval["maximum"]), (&1.into(), &3600.into()));
}

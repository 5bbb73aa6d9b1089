// SPDX-License-Identifier: Apache-2.0
//! Case files: a `tables` section, then named cases of packets and what must become of them.
//!
//! ```text
//! tables
//!   port 1 mac 02:00:00:00:00:01 mtu 1600
//!   node vtep4 192.0.2.1
//!   nc h1 192.0.2.11 mac 02:00:00:00:01:01
//!   vpc red 100 mac 02:00:00:00:02:00 gateway 10.0.0.1
//!   route red 10.0.0.0/24 local
//!   vm a red 10.0.0.5 mac 02:00:00:00:03:05 on h1
//!
//! case an address that no VM has
//!   in    eth h1 > gw / ip h1 > gw / udp 50000 > 4789 / vxlan red / eth a > red / ip a > 10.0.0.9 / udp 1 > 2
//!   punt  icmp_due
//!   drop  vm_unknown
//! ```

use crate::layers::Packet;
use crate::lex::{self, CaseError, Cursor, Names, Statement, Word};
use crate::parse;
use crate::region::Region;
use crate::tables_text;
use abi::{DropReason, PuntReason};
use conntrack_compact::TableKind;
use gateway::Classes;
use std::path::Path;

/// What must become of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent on by this port, as this frame.
    Forward(u32, Packet),
    /// Turned into this answer, sent by this port.
    Answer(u32, Packet),
    /// Left to the host, unchanged.
    Pass,
    /// Dropped.
    Drop(DropReason),
}

/// A packet and all that is expected of it.
#[derive(Clone, Debug)]
pub struct Input {
    /// Line of the `in` or `again`.
    pub line: usize,
    /// The frame.
    pub packet: Packet,
    /// Ingress interface.
    pub port: u32,
    /// How often it is sent; each time the same is expected.
    pub times: u32,
    /// Bytes of it in the first buffer; 0: all that fit.
    pub split: u32,
    /// The one outcome.
    pub outcome: Outcome,
    /// Frames that the gateway generates beside, in order, with their ports.
    pub generated: Vec<(u32, Packet)>,
    /// The XDP engine must hand it over with this reason; none: it must handle it itself.
    pub punt: Option<PuntReason>,
    /// The classes in which what is sent has to wait for its turn.
    pub classes: Classes,
    /// `punt` is what sessions would have it handed over for; with a state table it is that table's list which decides ([`crate::punts`]).
    pub by_state: bool,
    /// Whatever the fast path hands over is in order: the case is run in software.
    pub by_path: bool,
}

/// A counter that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Packets and bytes accepted from the VPC with this VNI.
    Vpc(u32),
    /// Packets and bytes delivered to the VM (VNI, MAC address).
    Vm(u32, u64),
    /// Drops of a reason attributed to this VNI.
    Drop(u32, DropReason),
    /// Green, yellow and red packets of the meter of this VPC.
    VpcMeter(u32),
    /// Green, yellow and red packets of the meter of this VM.
    VmMeter(u32, u64),
}

/// One step of a case.
#[derive(Clone, Debug)]
pub enum Step {
    /// From here on the tables are these (before the first packet: from the beginning).
    Tables(Box<Region>),
    /// Time goes on by so many nanoseconds.
    Time(u64),
    /// A packet.
    Input(Box<Input>),
    /// Counters must have these values since the beginning of the case.
    Count(usize, Counter, Vec<u64>),
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name: one sentence.
    pub name: String,
    /// File.
    pub file: String,
    /// Line of its name.
    pub line: usize,
    /// The tables that it begins with.
    pub region: Region,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Why it cannot be run on the XDP engine, if so.
    pub user_only: Option<String>,
    /// Why it cannot be run on the Rust path alone, if so.
    pub xdp_only: Option<String>,
    /// Kinds of state tables with which it cannot be run, and why.
    pub not_with: Vec<(TableKind, String)>,
}

impl Case {
    /// The inputs in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.steps.iter().filter_map(|s| match s {
            Step::Input(i) => Some(i.as_ref()),
            _ => None,
        })
    }
}

/// Reads every `*.case` file of a directory and of those in it, in order of names.
pub fn read_dir(dir: &Path) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    read_files(dir, &|_| true)
}

/// Reads the cases of those files of a directory whose name is `wanted`.
pub fn read_files(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "case"));
    paths.sort();
    let mut out = Vec::new();
    let folders = std::fs::read_dir(dir)?.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir());
    let mut folders: Vec<_> = folders.collect();
    folders.sort();
    for folder in folders {
        out.extend(read_files(&folder, wanted)?);
    }
    for path in paths {
        let name = path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        if !wanted(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        out.extend(parse(&name, &text, &|other| std::fs::read_to_string(dir.join(other)).ok())?);
    }
    Ok(out)
}

/// Reads one case file. `include` gives the text of a file named by `tables from NAME`.
pub fn parse(file: &str, text: &str, include: &dyn Fn(&str) -> Option<String>) -> Result<Vec<Case>, CaseError> {
    let mut p = Parser {
        file,
        include,
        region: Region::default(),
        names: Names::new(),
        cases: Vec::new(),
        case_region: Region::default(),
        case_names: Names::new(),
    };
    for statement in lex::statements(file, text)? {
        if statement.indented {
            p.inside(&statement)?;
        } else {
            p.head(&statement)?;
        }
    }
    p.finish_case()?;
    Ok(p.cases)
}

struct Parser<'a> {
    file: &'a str,
    include: &'a dyn Fn(&str) -> Option<String>,
    region: Region,
    names: Names,
    cases: Vec<Case>,
    case_region: Region,
    case_names: Names,
}

impl Parser<'_> {
    fn error(&self, word: &Word, message: &str) -> CaseError {
        CaseError { file: self.file.to_string(), line: word.line, column: word.column, message: message.to_string() }
    }

    /// A line that begins in column 1: `tables`, `tables from FILE` or `case NAME`.
    fn head(&mut self, statement: &Statement) -> Result<(), CaseError> {
        let words = &statement.words;
        match words[0].text.as_str() {
            "tables" if self.cases.is_empty() => match words.get(1) {
                None => Ok(()),
                Some(from) if from.text == "from" => self.tables_from(words.get(2).unwrap_or(from)),
                Some(other) => Err(self.error(other, "only `from FILE` may follow `tables`")),
            },
            "tables" => Err(self.error(&words[0], "the tables come before the first case; use `with` inside a case")),
            "case" => {
                self.finish_case()?;
                let name: Vec<&str> = words[1..].iter().map(|w| w.text.as_str()).collect();
                if name.is_empty() {
                    return Err(self.error(&words[0], "a case needs a name"));
                }
                self.case_region = self.region.clone();
                self.case_names = self.names.clone();
                self.cases.push(Case {
                    name: name.join(" "),
                    file: self.file.to_string(),
                    line: words[0].line,
                    region: self.region.clone(),
                    steps: Vec::new(),
                    user_only: None,
                    xdp_only: None,
                    not_with: Vec::new(),
                });
                Ok(())
            }
            other => Err(self.error(&words[0], &format!("`{other}` begins no section; there are: tables, case"))),
        }
    }

    fn tables_from(&mut self, word: &Word) -> Result<(), CaseError> {
        let Some(text) = (self.include)(&word.text) else {
            return Err(self.error(word, &format!("the tables file `{}` cannot be read", word.text)));
        };
        for statement in lex::statements(&word.text, &text)? {
            if statement.indented {
                tables_text::statement(&word.text, &statement.words, &mut self.region, &mut self.names)?;
            }
        }
        Ok(())
    }

    /// An indented line: a statement of the tables, or a step of the case.
    fn inside(&mut self, statement: &Statement) -> Result<(), CaseError> {
        let words = &statement.words;
        if self.cases.is_empty() {
            return tables_text::statement(self.file, words, &mut self.region, &mut self.names);
        }
        match words[0].text.as_str() {
            "with" => self.with(words),
            only @ ("user-only" | "xdp-only") => {
                let why: Vec<&str> = words[1..].iter().map(|w| w.text.as_str()).collect();
                if why.is_empty() {
                    return Err(self.error(&words[0], &format!("`{only}` needs a reason")));
                }
                let case = self.case();
                let place = if only == "user-only" { &mut case.user_only } else { &mut case.xdp_only };
                *place = Some(why.join(" "));
                Ok(())
            }
            "not-with" => self.not_with(words),
            "time" => self.time(words),
            "in" | "again" => self.input(words),
            "punt" | "waits" | "out" | "answer" | "drop" | "pass" | "generated" => self.expectation(words),
            "count" => self.count(words),
            other => {
                let known =
                    "with user-only xdp-only not-with time in again punt waits out answer drop pass generated count";
                Err(self.error(&words[0], &format!("`{other}` is no step of a case; there are: {known}")))
            }
        }
    }

    /// `not-with compact|digest|states WHY`: the case is not run with this kind of state table, or with none of them.
    fn not_with(&mut self, words: &[Word]) -> Result<(), CaseError> {
        let kinds: &[TableKind] = match words.get(1).map(|w| w.text.as_str()) {
            Some("compact") => &[TableKind::Compact],
            Some("digest") => &[TableKind::Digest],
            Some("states") => &[TableKind::Exact, TableKind::Compact, TableKind::Digest],
            _ => return Err(self.error(&words[0], "`not-with` needs one of: compact digest states")),
        };
        let why: Vec<&str> = words[2..].iter().map(|w| w.text.as_str()).collect();
        if why.is_empty() {
            return Err(self.error(&words[0], "`not-with` needs a reason"));
        }
        let case = self.case();
        case.not_with.extend(kinds.iter().map(|kind| (*kind, why.join(" "))));
        Ok(())
    }

    fn case(&mut self) -> &mut Case {
        // `inside` is only reached with a case at hand for the steps that call this.
        let last = self.cases.len() - 1;
        &mut self.cases[last]
    }

    fn with(&mut self, words: &[Word]) -> Result<(), CaseError> {
        if words.len() < 2 {
            return Err(self.error(&words[0], "`with` needs a statement of the tables section"));
        }
        tables_text::statement(self.file, &words[1..], &mut self.case_region, &mut self.case_names)?;
        let region = self.case_region.clone();
        let case = self.case();
        if !case.steps.iter().any(|s| matches!(s, Step::Input(_))) {
            case.region = region;
        } else if let Some(Step::Tables(last)) = case.steps.last_mut() {
            **last = region;
        } else {
            case.steps.push(Step::Tables(Box::new(region)));
        }
        Ok(())
    }

    fn time(&mut self, words: &[Word]) -> Result<(), CaseError> {
        let names = self.case_names.clone();
        let mut c = Cursor::new(self.file, &words[1..], &names);
        let word = c.next("a time span, as in +20ms")?;
        let span = c.span_of(word, word.text.trim_start_matches('+'))?;
        c.end()?;
        self.case().steps.push(Step::Time(span));
        Ok(())
    }

    fn input(&mut self, words: &[Word]) -> Result<(), CaseError> {
        self.in_force(&words[0])?;
        let names = self.case_names.clone();
        let mut c = Cursor::new(self.file, &words[1..], &names);
        let mut input = Input {
            line: words[0].line,
            packet: Packet::default(),
            port: self.case_region.ports.first().map_or(1, |p| p.ifindex),
            times: 1,
            split: 0,
            outcome: UNSET,
            generated: Vec::new(),
            punt: None,
            classes: Classes::NONE,
            by_state: false,
            by_path: false,
        };
        if words[0].text == "again" {
            match self.case().inputs().last() {
                Some(last) => (input.packet, input.port) = (last.packet.clone(), last.port),
                None => return Err(self.error(&words[0], "`again` needs a packet before")),
            }
        }
        if let Some(times) = c.peek().and_then(|w| w.text.strip_prefix('x')).and_then(|n| n.parse().ok()) {
            c.next("times")?;
            input.times = times;
        }
        if c.eat("port") {
            input.port = c.number("interface number", 0xffff)? as u32;
        }
        if c.eat("split") {
            input.split = c.number("number of bytes", 65_535)? as u32;
        }
        if words[0].text == "in" {
            input.packet = parse::packet(&mut c)?;
        }
        c.end()?;
        self.case().steps.push(Step::Input(Box::new(input)));
        Ok(())
    }

    fn expectation(&mut self, words: &[Word]) -> Result<(), CaseError> {
        let names = self.case_names.clone();
        let mut c = Cursor::new(self.file, &words[1..], &names);
        let verb = words[0].text.as_str();
        let mut port = self.case_region.ports.first().map_or(1, |p| p.ifindex);
        let complaint = self.error(&words[0], &format!("`{verb}` needs an `in` before it"));
        let double = self.error(&words[0], "this packet already has an outcome: there is exactly one");
        let Some(Step::Input(input)) = self.case().steps.last_mut() else { return Err(complaint) };
        if c.eat("port") {
            port = c.number("interface number", 0xffff)? as u32;
        }
        let outcome = match verb {
            "punt" => {
                let word = c.next("a punt reason")?;
                let found = PuntReason::from_name(&word.text);
                input.punt = Some(found.ok_or_else(|| c.error(word, &format!("`{}` is no punt reason", word.text)))?);
                None
            }
            "waits" => {
                let first = c.number("class of the shaper", 0xffff)? as u16;
                let then = if c.eat("then") { c.number("class of the shaper", 0xffff)? as u16 } else { 0 };
                input.classes = Classes { first, then };
                None
            }
            "generated" => {
                input.generated.push((port, parse::packet(&mut c)?));
                None
            }
            "out" => Some(Outcome::Forward(port, parse::packet(&mut c)?)),
            "answer" => Some(Outcome::Answer(port, parse::packet(&mut c)?)),
            "pass" => Some(Outcome::Pass),
            _ => {
                let word = c.next("a drop reason")?;
                let found = DropReason::from_name(&word.text);
                Some(Outcome::Drop(found.ok_or_else(|| c.error(word, &format!("`{}` is no drop reason", word.text)))?))
            }
        };
        c.end()?;
        if let Some(outcome) = outcome {
            if input.outcome != UNSET {
                return Err(double);
            }
            input.outcome = outcome;
        }
        Ok(())
    }

    /// `count vpc red packets 1 bytes 84`, `count vm b …`, `count meter red green 1 …`, `count drop red route_none 2`.
    fn count(&mut self, words: &[Word]) -> Result<(), CaseError> {
        let names = self.case_names.clone();
        let mut c = Cursor::new(self.file, &words[1..], &names);
        let what = c.next("vpc, vm, meter or drop")?;
        let (counter, keys): (Counter, &[&str]) = match what.text.as_str() {
            "vpc" => (Counter::Vpc(c.vni()?), &["packets", "bytes"]),
            "vm" => {
                let (vni, mac) = self.vm(c.next("the name of a VM")?)?;
                (Counter::Vm(vni, mac), &["packets", "bytes"])
            }
            "meter" if c.eat("vm") => {
                let (vni, mac) = self.vm(c.next("the name of a VM")?)?;
                (Counter::VmMeter(vni, mac), &["green", "yellow", "red"])
            }
            "meter" => (Counter::VpcMeter(c.vni()?), &["green", "yellow", "red"]),
            "drop" => {
                // A customer of an edge port: its number and the tag.
                let vni = match c.eat("customer") {
                    true => {
                        let port = c.number("number of the edge port", 15)? as u32;
                        abi::DROP_CUSTOMER | port << abi::DROP_CUSTOMER_PORT_SHIFT | c.number("VLAN id", 4095)? as u32
                    }
                    false => c.vni()?,
                };
                let word = c.peek();
                let name = &c.next("a drop reason")?.text;
                let reason = DropReason::from_name(name);
                let at = word.unwrap_or(what);
                let reason = reason.ok_or_else(|| c.error(at, &format!("`{name}` is no drop reason")))?;
                (Counter::Drop(vni, reason), &["packets"])
            }
            other => return Err(c.error(what, &format!("`{other}` is no counter; there are: vpc vm meter drop"))),
        };
        let mut values = Vec::new();
        for key in keys {
            let word = c.next(key)?;
            if word.text != *key {
                return Err(c.error(word, &format!("`{key}` is needed here, not `{}`", word.text)));
            }
            values.push(c.number(key, u64::MAX)?);
        }
        c.end()?;
        self.case().steps.push(Step::Count(words[0].line, counter, values));
        Ok(())
    }

    fn vm(&self, word: &Word) -> Result<(u32, u64), CaseError> {
        let all = self.case_region.vpcs.iter().flat_map(|v| v.vms.iter().map(move |m| (v.vni, m)));
        let found = all.into_iter().find(|(_, m)| m.name == word.text);
        found
            .map(|(vni, m)| (vni, m.mac.number()))
            .ok_or_else(|| self.error(word, &format!("VM `{}` is not known here", word.text)))
    }

    /// The last packet of the case has an outcome.
    fn in_force(&self, word: &Word) -> Result<(), CaseError> {
        let open = self.cases.last().and_then(|c| c.inputs().last()).filter(|i| i.outcome == UNSET);
        match open {
            Some(i) => {
                Err(self
                    .error(word, &format!("the packet of line {} has no outcome: out, answer, pass or drop", i.line)))
            }
            None => Ok(()),
        }
    }

    fn finish_case(&self) -> Result<(), CaseError> {
        let Some(case) = self.cases.last() else { return Ok(()) };
        let line = case.inputs().last().map_or(case.line, |i| i.line);
        let word = Word { text: String::new(), line, column: 1 };
        if case.inputs().next().is_none() {
            return Err(self.error(&word, "a case needs at least one packet (`in`)"));
        }
        self.in_force(&word)
    }
}

/// Stands for "not given yet": reason numbers that a packet could never have end here.
const UNSET: Outcome = Outcome::Drop(DropReason::PuntRingFull);

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "tables\n  port 1 mac 02:00:00:00:00:01 mtu 1600\n  node vtep4 192.0.2.1\n  \
                          nc h1 192.0.2.11 mac 02:00:00:00:01:01\n  vpc red 100 mac 02:00:00:00:02:00 gateway 10.0.0.1\n  \
                          vm a red 10.0.0.5 mac 02:00:00:00:03:05 on h1\n";

    fn error(text: &str) -> String {
        parse("x.case", &format!("{TABLES}{text}"), &|_| None).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_file_line_and_column() {
        for (text, begins) in [
            ("case a\n  in eth h1 > gw / ipx a > b\n  pass\n", "x.case:8:20: `ipx` is no layer"),
            ("case a\n  in eth h1 gw\n  pass\n", "x.case:8:13: `>` is needed"),
            ("case a\n  in eth h1 > nobody\n  pass\n", "x.case:8:15: `nobody` is neither"),
            ("case a\n  in eth h1 > gw\n   / ip a > red ttl=999\n  pass\n", "x.case:9:17: `999` is no ttl"),
            ("case a\n  in eth h1 > gw\n  drop no_reason\n", "x.case:9:8: `no_reason` is no drop reason"),
            ("case a\n  in eth h1 > gw\n  pass\n  drop route_none\n", "x.case:10:3: this packet already"),
            ("case a\n  in eth h1 > gw\n", "x.case:8:1: the packet of line 8 has no outcome"),
            ("case a\n  pass\n", "x.case:8:3: `pass` needs an `in`"),
            ("case a\n  with route red 10.0.0.1/24 local\n", "x.case:8:18: `10.0.0.1/24` is no prefix"),
            ("case a\n", "x.case:7:1: a case needs at least one packet"),
            ("case a\n  in eth h1 > gw / hex 123\n  pass\n", "x.case:8:24: `123` is no run"),
            ("case a\n  in eth h1 > gw / text \"no end\n  pass\n", "x.case:8:25: this quotation mark"),
            ("nonsense\n", "x.case:7:1: `nonsense` begins no section"),
        ] {
            assert!(error(text).starts_with(begins), "{}\nshould begin with {begins}", error(text));
        }
    }

    #[test]
    fn steps_are_read_in_order() {
        let text = "case two packets\n  in x2 eth h1 > gw\n  pass\n  time +3ms\n  again\n  drop outer_truncated\n  \
                    count vpc red packets 1 bytes 2\n";
        let cases = parse("x.case", &format!("{TABLES}{text}"), &|_| None).unwrap();
        assert_eq!(cases.len(), 1);
        let inputs: Vec<_> = cases[0].inputs().collect();
        assert_eq!((inputs[0].times, inputs[1].times), (2, 1));
        assert_eq!(inputs[0].packet, inputs[1].packet);
        assert!(matches!(cases[0].steps[1], Step::Time(3_000_000)));
        assert!(matches!(&cases[0].steps[3], Step::Count(_, Counter::Vpc(100), v) if *v == [1, 2]));
    }

    #[test]
    fn a_region_in_text_gives_the_same_region() {
        let cases = parse("x.case", &format!("{TABLES}case a\n  in eth h1 > gw\n  pass\n"), &|_| None).unwrap();
        let text = format!("{}case a\n  in eth 02:00:00:00:00:01 > 02:00:00:00:00:02\n  pass\n", cases[0].region);
        assert_eq!(parse("y.case", &text, &|_| None).unwrap()[0].region, cases[0].region);
    }
}

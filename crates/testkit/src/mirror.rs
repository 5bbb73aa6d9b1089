// SPDX-License-Identifier: Apache-2.0
//! The part of a region that says what is mirrored, and which copies a naive reader of the configuration expects.

use crate::lex::{CaseError, Cursor};
use crate::region::{Limit, Region, Vm, Vpc};
use abi::Vni;
use filter::Pattern;
use gateway::{Collector, MirrorSpec};
use std::fmt;
use std::net::IpAddr;

type Parsed<T> = Result<T, CaseError>;

/// A mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Name.
    pub name: String,
    /// Names of the VMs that it is of.
    pub of: Vec<String>,
    /// What they get is copied.
    pub ingress: bool,
    /// What they send is copied.
    pub egress: bool,
    /// What of it; none: all.
    pub patterns: Vec<Pattern>,
    /// Bytes of a copied frame at most, 0: all that fit.
    pub bytes: u16,
    /// Copies a second.
    pub limit: Limit,
    /// Copies are for a VM, not for an NC.
    pub to_vm: bool,
    /// Its name.
    pub to: String,
    /// VNI of the copies.
    pub vni: u32,
}

/// `mirror NAME of VM… [in|out] [match PATTERN]… [bytes N] [limit N/s burst N] to vm|nc NAME vni N`.
pub fn statement(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let name = c.next("a name")?.text.clone();
    let mut m = Mirror {
        name,
        of: Vec::new(),
        ingress: true,
        egress: true,
        patterns: Vec::new(),
        bytes: 0,
        limit: Limit::default(),
        to_vm: false,
        to: String::new(),
        vni: 0,
    };
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "of" => {
                while let Some(vm) = c.peek().filter(|w| region.vm_named(&w.text).is_some()) {
                    m.of.push(vm.text.clone());
                    c.next("a VM")?;
                }
            }
            "in" => m.egress = false,
            "out" => m.ingress = false,
            "match" => {
                let word = c.next("a pattern")?;
                m.patterns.push(word.text.parse().map_err(|e: String| c.error(word, &e))?);
            }
            "bytes" => m.bytes = c.number("bytes", 0xffff)? as u16,
            "limit" => {
                m.limit.per_second = c.number("copies a second", 1_000_000_000)? as u32;
                m.limit.burst = c.number("copies at once", 1_000_000)? as u32;
            }
            "to" => {
                let kind = c.next("vm or nc")?;
                m.to_vm = kind.text == "vm";
                let to = c.next("a name")?;
                let known = match m.to_vm {
                    true => region.vm_named(&to.text).is_some(),
                    false => region.ncs.iter().any(|nc| nc.name == to.text),
                };
                if !known {
                    return Err(c.error(to, &format!("`{}` is no {} here", to.text, kind.text)));
                }
                m.to = to.text.clone();
            }
            "vni" => m.vni = c.number("VNI", 0xff_ffff)? as u32,
            other => return Err(c.error(word, &format!("`{other}` is none of: of in out match bytes limit to vni"))),
        }
    }
    region.mirrors.retain(|old| old.name != m.name);
    region.mirrors.push(m);
    Ok(())
}

/// `delete mirror NAME`. False: something else is to be deleted.
pub fn delete(c: &mut Cursor<'_>, what: &str, region: &mut Region) -> Parsed<bool> {
    if what == "mirror" {
        let name = &c.next("the name of a mirror")?.text;
        region.mirrors.retain(|m| m.name != *name);
    }
    Ok(what == "mirror")
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mirror {} of {}", self.name, self.of.join(" "))?;
        match (self.ingress, self.egress) {
            (true, false) => f.write_str(" in")?,
            (false, true) => f.write_str(" out")?,
            _ => {}
        }
        self.patterns.iter().try_for_each(|p| write!(f, " match \"{p}\""))?;
        if self.bytes > 0 {
            write!(f, " bytes {}", self.bytes)?;
        }
        if self.limit.per_second > 0 {
            write!(f, " limit {} {}", self.limit.per_second, self.limit.burst)?;
        }
        write!(f, " to {} {} vni {}", if self.to_vm { "vm" } else { "nc" }, self.to, self.vni)
    }
}

impl Region {
    /// A VM and its VPC by the VM's name.
    pub fn vm_named(&self, name: &str) -> Option<(&Vpc, &Vm)> {
        self.vpcs.iter().find_map(|v| Some((v, v.vms.iter().find(|vm| vm.name == name)?)))
    }

    /// Notes which VMs mirrors are of.
    pub fn note_mirrored(&mut self) {
        let mirrors = &self.mirrors;
        for vm in self.vpcs.iter_mut().flat_map(|v| &mut v.vms) {
            vm.mirrored = mirrors.iter().any(|m| m.of.contains(&vm.name));
        }
    }

    /// For the software path: what is mirrored.
    pub fn mirror_specs(&self) -> Vec<MirrorSpec> {
        let spec = |m: &Mirror| {
            let sources = m.of.iter().filter_map(|name| self.vm_named(name));
            Some(MirrorSpec {
                name: m.name.as_str().into(),
                sources: sources.map(|(vpc, vm)| (Vni(vpc.vni), vm.mac.number())).collect(),
                egress: m.egress,
                ingress: m.ingress,
                patterns: m.patterns.clone(),
                collector: self.collector(m)?,
                vni: Vni(m.vni),
                bytes: m.bytes,
                limit: tables::RateLimit { per_second: m.limit.per_second, burst: m.limit.burst },
            })
        };
        self.mirrors.iter().filter_map(spec).collect()
    }

    fn collector(&self, m: &Mirror) -> Option<Collector> {
        if !m.to_vm {
            return Some(Collector::Address(self.ncs.iter().find(|nc| nc.name == m.to)?.addr));
        }
        let (vpc, vm) = self.vm_named(&m.to)?;
        let gateway = |v6: bool| vpc.gateways.iter().find(|a| a.is_ipv6() == v6).copied();
        let four = vm.v4.map(IpAddr::V4).zip(gateway(false));
        let (address, from) = four.or_else(|| vm.v6.map(IpAddr::V6).zip(gateway(true)))?;
        Some(Collector::Vm { vni: Vni(vpc.vni), address, from })
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Finding objects by a part of their names, over millions.
//!
//! The names of a kind lie in one text, a line each, in which a fast substring search finds what contains a word: a byte a character
//! and nothing else a name. A name that goes stays in the text until the model is asked for it and has it no more; when as
//! much has gone as is there, the text is written anew. So a change costs what it names, and a search a pass over the text,
//! which a processor reads at gigabytes a second, until enough is found.

use memchr::memmem;
use model::{Kind, Model, Name, Object, Pair};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Kinds whose names are found.
pub const KINDS: [Kind; 6] = [Kind::Tenant, Kind::Vpc, Kind::Vm, Kind::Nc, Kind::Node, Kind::Cluster];
/// Names that are gone are borne up to this number, however few there are.
const GONE_MIN: usize = 1024;

/// The names of a kind.
#[derive(Debug)]
struct Names {
    /// Each between two line ends.
    text: String,
    lines: usize,
    /// Of the lines, those whose object went since, at least.
    gone: usize,
}

impl Default for Names {
    fn default() -> Names {
        Names { text: "\n".into(), lines: 0, gone: 0 }
    }
}

impl Names {
    fn add(&mut self, name: &str) {
        self.text.push_str(name);
        self.text.push('\n');
        self.lines += 1;
    }

    /// Names that contain `word`, those first that begin with it. One may come more than once.
    fn containing<'t>(&'t self, word: &'t str) -> impl Iterator<Item = &'t str> {
        let line_with = move |at: usize| {
            let bytes = self.text.as_bytes();
            let first = memchr::memrchr(b'\n', &bytes[..at]).map_or(0, |end| end + 1);
            let last = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| at + end);
            &self.text[first..last]
        };
        let begins = format!("\n{word}");
        let finder = memmem::Finder::new(&begins).into_owned();
        let mut from = 0;
        let beginning = std::iter::from_fn(move || {
            let at = from + finder.find(&self.text.as_bytes()[from..])? + 1;
            from = at;
            Some(line_with(at)).filter(|line| !line.is_empty())
        });
        let within = memmem::find_iter(self.text.as_bytes(), word.as_bytes()).map(line_with);
        beginning.chain(within)
    }
}

/// The names of a region's objects, and who owns its VPCs.
#[derive(Debug, Default)]
pub struct Index {
    names: BTreeMap<Kind, Names>,
    owners: HashMap<Name, Name>,
}

/// The name by which an object is in the index. A VM without one of its own is found by its VPC and address.
fn own_name(object: &Object) -> Option<Name> {
    match object {
        Object::Vm(vm) => vm.name.clone(),
        other if KINDS.contains(&other.kind()) => Some(other.name()),
        _ => None,
    }
}

impl Index {
    /// Of all that there is.
    pub fn of(model: &Model) -> Index {
        let mut index = Index::default();
        for kind in KINDS {
            let names = index.names.entry(kind).or_default();
            model.objects(kind).filter_map(|o| own_name(&o)).for_each(|name| names.add(&name));
        }
        for tenant in model.by_name().tenants.values() {
            index.owners.extend(tenant.vpcs.iter().map(|vpc| (vpc.clone(), tenant.name.clone())));
        }
        index
    }

    /// Follows a change that `model` has taken.
    pub fn follow(&mut self, model: &Model, pairs: &[Pair]) {
        for (before, _) in pairs {
            if let Some(Object::Tenant(tenant)) = before {
                tenant.vpcs.iter().for_each(|vpc| drop(self.owners.remove(vpc)));
            }
        }
        for (before, after) in pairs {
            if let Some(Object::Tenant(tenant)) = after {
                self.owners.extend(tenant.vpcs.iter().map(|vpc| (vpc.clone(), tenant.name.clone())));
            }
            let Some(kind) = before.as_ref().or(after.as_ref()).map(Object::kind).filter(|k| KINDS.contains(k)) else {
                continue;
            };
            let names = self.names.entry(kind).or_default();
            match (before.as_ref().and_then(own_name), after.as_ref().and_then(own_name)) {
                (a, b) if a == b => {}
                (a, b) => {
                    names.gone += usize::from(a.is_some());
                    b.iter().for_each(|name| names.add(name));
                }
            }
        }
        for (kind, names) in &mut self.names {
            if names.gone > GONE_MIN.max(names.lines / 2) {
                *names = Names::default();
                model.objects(*kind).filter_map(|o| own_name(&o)).for_each(|name| names.add(&name));
            }
        }
    }

    /// Objects of a kind whose names contain `word`: the one that is called so, those that begin with it, then the others. It looks
    /// at `most` names at most.
    pub fn containing<'i>(
        &'i self,
        model: &'i Model,
        kind: Kind,
        word: &'i str,
        most: usize,
    ) -> impl Iterator<Item = Object> + 'i {
        let mut told = HashSet::new();
        let exact = model.get(kind, word).into_iter();
        let others = self.names.get(&kind).filter(|_| !word.is_empty() && !word.contains('\n')).into_iter();
        let others = others.flat_map(move |names| names.containing(word)).take(most);
        let others = others.filter(move |name| *name != word && told.insert(*name));
        exact.chain(others.filter_map(move |name| model.get(kind, name)))
    }

    /// The Tenant that owns a VPC.
    pub fn owner(&self, vpc: &str) -> Option<&Name> {
        self.owners.get(vpc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Documents;
    use rand::{RngExt, SeedableRng};

    fn docs(text: &str) -> Documents {
        let text = text.replace("{kind", "{apiVersion: tunny/v1, kind");
        model::parse_text("x.yaml", &text).unwrap_or_else(|e| panic!("{}: {text}", e[0]))
    }

    /// By looking at every object.
    fn expected(model: &Model, kind: Kind, word: &str) -> Vec<Name> {
        let mut names: Vec<Name> =
            model.objects(kind).filter_map(|o| own_name(&o)).filter(|n| n.contains(word)).collect();
        names.sort();
        names
    }

    #[test]
    fn the_index_finds_what_a_look_at_every_object_finds() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let (mut model, _) = Model::from_documents(&docs("{kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.1}}\n---\n{kind: Vpc, metadata: {name: red}, spec: {vni: 7}}")).unwrap();
        let mut index = Index::of(&model);
        let mut found = 0;
        for round in 0..400 {
            let mut text = String::new();
            for _ in 0..rng.random_range(1..30) {
                let n = rng.random_range(0..300u32);
                let line = match rng.random_range(0..5) {
                    0 => format!("{{kind: Vpc, metadata: {{name: vpc-{n}}}, spec: {{vni: {}}}}}", 1000 + n),
                    1 => format!("{{kind: Vm, spec: {{vpc: red, addresses: [10.1.{}.{}], mac: \"02:00:00:01:{:02x}:{:02x}\", nc: n}}}}", n >> 8, n & 255, n >> 8, n & 255),
                    2 => format!("{{kind: Tenant, metadata: {{name: t{n}}}, spec: {{vpcs: []}}}}"),
                    _ => format!("{{kind: Vm, metadata: {{name: web-{n}}}, spec: {{vpc: red, addresses: [10.0.{}.{}], mac: \"02:00:00:00:{:02x}:{:02x}\", nc: n}}}}", n >> 8, n & 255, n >> 8, n & 255),
                };
                text += &format!("{line}\n---\n");
            }
            let mut change = docs(&text);
            if rng.random_range(0..2) == 0 {
                change = change.into_deletions();
            }
            let Ok(plan) = model.apply(&change) else { continue };
            index.follow(&model, &plan.pairs(&model));
            for (kind, word) in
                [(Kind::Vm, "web-1"), (Kind::Vm, "b-2"), (Kind::Vpc, "pc-"), (Kind::Tenant, "t3"), (Kind::Vm, "x")]
            {
                let mut names: Vec<Name> = index.containing(&model, kind, word, usize::MAX).map(|o| o.name()).collect();
                names.sort();
                found += names.len();
                assert_eq!(names, expected(&model, kind, word), "{kind} {word} in round {round}");
            }
        }
        assert!(found > 1000, "{found}");
        let lines = index.names.values().map(|n| n.lines).sum::<usize>();
        assert!(lines < 4 * GONE_MIN, "what went is forgotten: {lines}");
    }

    #[test]
    fn the_order_is_called_so_begins_so_contains_it() {
        let (model, _) = Model::from_documents(&docs(
            "{kind: Nc, metadata: {name: rack-web}, spec: {address: 192.0.2.1}}\n---\n{kind: Nc, metadata: {name: web-2}, spec: {address: 192.0.2.2}}\n---\n{kind: Nc, metadata: {name: web}, spec: {address: 192.0.2.3}}",
        ))
        .unwrap();
        let index = Index::of(&model);
        let names = |word: &str, most| {
            index.containing(&model, Kind::Nc, word, most).map(|o| o.name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("web", 100), ["web", "web-2", "rack-web"]);
        assert_eq!(names("web", 0), ["web"]);
        assert_eq!(names("", 100), [""; 0]);
        assert_eq!(names("\n", 100), [""; 0]);
    }

    #[test]
    fn a_vpc_that_changes_hands_has_its_new_owner() {
        let region = "{kind: Vpc, metadata: {name: red}, spec: {vni: 7}}\n---\n{kind: Tenant, metadata: {name: a}, spec: {vpcs: [red]}}\n---\n{kind: Tenant, metadata: {name: b}, spec: {vpcs: []}}";
        let (mut model, _) = Model::from_documents(&docs(region)).unwrap();
        let mut index = Index::of(&model);
        assert_eq!(index.owner("red").map(|n| &**n), Some("a"));
        let plan = model.apply(&docs("{kind: Tenant, metadata: {name: b}, spec: {vpcs: [red]}}\n---\n{kind: Tenant, metadata: {name: a}, spec: {vpcs: []}}")).unwrap();
        index.follow(&model, &plan.pairs(&model));
        assert_eq!(index.owner("red").map(|n| &**n), Some("b"));
    }
}

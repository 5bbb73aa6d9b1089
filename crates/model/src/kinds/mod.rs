// SPDX-License-Identifier: Apache-2.0
//! The kinds: a file each, and the list of them. What is said of a kind anywhere else comes from these.
//!
//! A new kind is a file with its [`fields!`] and its [`Described`], and a line in the list below.

mod announce;
mod cluster;
mod edge_port;
mod elastic_ip;
mod evpn;
mod filter_states;
mod gateway;
mod handover;
mod meter;
mod mirror;
mod nc;
mod node;
mod peering;
#[cfg(test)]
mod probe_tests;
mod public_pool;
mod region;
mod role;
mod route;
mod routing;
mod security_binding;
mod security_group;
mod server;
mod shape;
mod snat;
mod tenant;
mod timeouts;
mod vm;
mod vm_port;
mod vpc;

pub use announce::*;
pub use cluster::*;
pub use edge_port::*;
pub use elastic_ip::*;
pub use evpn::*;
pub use filter_states::*;
pub use gateway::*;
pub use handover::*;
pub use meter::*;
pub use mirror::*;
pub use nc::*;
pub use node::*;
pub use peering::*;
#[cfg(test)]
pub use probe_tests::*;
pub use public_pool::*;
pub use region::*;
pub use role::*;
pub use route::*;
pub use routing::*;
pub use security_binding::*;
pub use security_group::*;
pub use server::*;
pub use shape::*;
pub use snat::*;
pub use tenant::*;
pub use timeouts::*;
pub use vm::*;
pub use vm_port::*;
pub use vpc::*;

use crate::declare::{Field, Fields, Referred};
use crate::doc::Doc;
use crate::labels::Labels;
use crate::written::Written;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

/// A name, as in `metadata.name`. Cheap to clone; a reader shares one allocation among equal names.
pub type Name = Arc<str>;

/// What a kind is besides its fields.
pub(crate) trait Described: Fields {
    /// Whether each object belongs to VPCs.
    const OF_VPCS: bool = false;

    /// Its name; without one of its own the canonical name.
    fn name(&self) -> Name;

    /// A few words that tell this object from others of its kind.
    fn summary(&self) -> String;

    /// The VPCs that it belongs to.
    fn vpcs(&self) -> &[Name] {
        &[]
    }

    /// What its fields must agree on. None: with what is wrong it would be another object than the one that is meant.
    fn check(self, _doc: &mut Doc<'_>) -> Option<Self> {
        Some(self)
    }

    /// Takes out of its document what goes without saying.
    fn tidy(&self, _out: &mut Written) {}
}

/// What the list knows of a kind.
pub(crate) struct Declared {
    pub about: &'static str,
    of_vpcs: bool,
    pub rows: fn(&str, &mut Vec<Field>),
    /// The object of a document.
    pub read: fn(&mut Doc<'_>) -> Option<Object>,
}

impl Declared {
    fn of<K: Described>(read: fn(&mut Doc<'_>) -> Option<Object>) -> Declared {
        Declared { about: K::ABOUT, of_vpcs: K::OF_VPCS, rows: K::rows, read }
    }
}

/// What the list knows of an object.
trait Content {
    fn name(&self) -> Name;
    fn summary(&self) -> String;
    fn vpcs(&self) -> &[Name];
    fn write(&self, out: &mut Written);
}

impl<K: Described> Content for K {
    fn name(&self) -> Name {
        Described::name(self)
    }

    fn summary(&self) -> String {
        Described::summary(self)
    }

    fn vpcs(&self) -> &[Name] {
        Described::vpcs(self)
    }

    fn write(&self, out: &mut Written) {
        Fields::write(self, out, "");
        self.tidy(out);
    }
}

/// The list: kinds for which the model has structures of its own, and those that it holds by name alone. The order is that in which
/// they depend on each other; the numbers stand in journals.
macro_rules! kinds {
    (
        structures { $($Own:ident($Content:ty) = $own:literal,)+ }
        by_name { $($(#[$cfg:meta])* $Named:ident in $map:ident = $named:literal,)+ }
    ) => {
        /// The kinds of documents, in the order in which they depend on each other.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = concat!("See [`", stringify!($Own), "`].")] $Own = $own,)+
            $($(#[$cfg])* #[doc = concat!("See [`", stringify!($Named), "`].")] $Named = $named,)+
        }

        /// Any object.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Object {
            $(#[doc = concat!("See [`", stringify!($Own), "`].")] $Own($Content),)+
            $($(#[$cfg])* #[doc = concat!("See [`", stringify!($Named), "`].")] $Named(Box<$Named>),)+
        }

        const KINDS: &[Kind] = &[$(Kind::$Own,)+ $($(#[$cfg])* Kind::$Named,)+];
        const NAMED: &[Kind] = &[$($(#[$cfg])* Kind::$Named,)+];

        impl Kind {
            /// As in `kind:`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$Own => stringify!($Own),)+
                    $($(#[$cfg])* Kind::$Named => stringify!($Named),)+
                }
            }

            /// What is declared of it.
            pub(crate) fn declared(self) -> Declared {
                match self {
                    $(Kind::$Own => Declared::of::<$Own>(|doc| {
                        Some(Object::$Own(Described::check($Own::read(doc, ""), doc)?.into()))
                    }),)+
                    $($(#[$cfg])*
                    Kind::$Named => Declared::of::<$Named>(|doc| {
                        Some(Object::$Named(Described::check($Named::read(doc, ""), doc)?.into()))
                    }),)+
                }
            }
        }

        impl Object {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Object::$Own(_) => Kind::$Own,)+
                    $($(#[$cfg])* Object::$Named(_) => Kind::$Named,)+
                }
            }

            /// Its labels.
            pub fn labels(&self) -> &Labels {
                match self {
                    $(Object::$Own(o) => &o.labels,)+
                    $($(#[$cfg])* Object::$Named(o) => &o.labels,)+
                }
            }

            fn content(&self) -> &dyn Content {
                match self {
                    $(Object::$Own(o) => { let o: &$Own = o; o })+
                    $($(#[$cfg])* Object::$Named(o) => &**o,)+
                }
            }
        }

        /// The objects that the model holds by name. They are few beside VMs and routes, so they keep their references by name.
        #[derive(Clone, Debug, Default)]
        pub struct ByName {
            $($(#[$cfg])* #[doc = concat!("Each [`", stringify!($Named), "`].")] pub $map: BTreeMap<Name, Box<$Named>>,)+
        }

        impl ByName {
            pub(crate) fn len(&self, kind: Kind) -> usize {
                match kind {
                    $($(#[$cfg])* Kind::$Named => self.$map.len(),)+
                    _ => 0,
                }
            }

            pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<Object> {
                match kind {
                    $($(#[$cfg])* Kind::$Named => self.$map.get(name).cloned().map(Object::$Named),)+
                    _ => None,
                }
            }

            /// Whether there is one, without a copy of it.
            pub(crate) fn contains(&self, kind: Kind, name: &str) -> bool {
                match kind {
                    $($(#[$cfg])* Kind::$Named => self.$map.contains_key(name),)+
                    _ => false,
                }
            }

            /// Puts an object in; the one of its name that was there.
            pub(crate) fn put(&mut self, object: Object) -> Option<Object> {
                match object {
                    $($(#[$cfg])* Object::$Named(o) => self.$map.insert(Described::name(&*o), o).map(Object::$Named),)+
                    _ => None,
                }
            }

            pub(crate) fn remove(&mut self, kind: Kind, name: &str) -> Option<Object> {
                match kind {
                    $($(#[$cfg])* Kind::$Named => self.$map.remove(name).map(Object::$Named),)+
                    _ => None,
                }
            }

            /// Tells of every name that must be one of an object, in objects of some kinds: who names it, then as [`Referred`] has it.
            pub(crate) fn references(&self, of: fn(Kind) -> bool, told: &mut dyn FnMut((Kind, &Name), Kind, &Name, &dyn Fn() -> String)) {
                $($(#[$cfg])*
                for (name, o) in self.$map.iter().take(if of(Kind::$Named) { usize::MAX } else { 0 }) {
                    let own = (Kind::$Named, name);
                    let mut told = |kind: Kind, name: &Name, path: &dyn Fn() -> String| told(own, kind, name, path);
                    let found: Referred<'_> = &mut told;
                    Fields::references(&**o, "", found);
                })+
            }

            /// Those of a kind with names in a range.
            pub(crate) fn range(&self, kind: Kind, names: (Bound<Name>, Bound<Name>)) -> Box<dyn Iterator<Item = Object> + '_> {
                match kind {
                    $($(#[$cfg])*
                    Kind::$Named => Box::new(self.$map.range(names).map(|(_, o)| Object::$Named(o.clone()))),)+
                    _ => Box::new(std::iter::empty()),
                }
            }
        }
    };
}

kinds! {
    structures {
        Gateway(Box<Gateway>) = 0,
        Nc(Nc) = 1,
        Vpc(Box<Vpc>) = 2,
        Peering(Peering) = 3,
        Vm(Vm) = 4,
        Route(Route) = 5,
    }
    by_name {
        PublicPool in pools = 6,
        Snat in snats = 7,
        ElasticIp in elastics = 8,
        SecurityGroup in groups = 9,
        SecurityBinding in bindings = 10,
        Server in servers = 11,
        Region in regions = 12,
        Cluster in clusters = 13,
        Node in nodes = 14,
        Tenant in tenants = 15,
        Role in roles = 16,
        Handover in handovers = 17,
        EdgePort in edge_ports = 18,
        Overlay in overlays = 19,
        EvpnInstance in evpn_instances = 20,
        VmPort in vm_ports = 21,
        Mirror in mirrors = 22,
        #[cfg(test)]
        Probe in probes = 23,
    }
}

impl Object {
    /// Its name; for a Vm or Route without one the canonical name.
    pub fn name(&self) -> Name {
        self.content().name()
    }

    /// A few words that tell this object from others of its kind.
    pub fn summary(&self) -> String {
        self.content().summary()
    }

    /// The VPCs that it belongs to.
    pub fn vpcs(&self) -> &[Name] {
        self.content().vpcs()
    }

    /// The document of this object as one line of NDJSON, without the line's end. What is absent stays absent; defaults are written
    /// out.
    pub fn to_ndjson(&self) -> String {
        let mut written = Written::new();
        self.content().write(&mut written);
        written.line(self.kind().name())
    }

    /// The same as a tree.
    pub fn to_json(&self) -> Value {
        serde_json::from_str(&self.to_ndjson()).unwrap_or_default()
    }
}

impl Kind {
    /// Whether each object of it belongs to VPCs.
    pub fn is_of_vpcs(self) -> bool {
        self.declared().of_vpcs
    }

    /// Whether it is the controller's alone: a node takes no object of it.
    pub fn is_of_region(self) -> bool {
        matches!(self, Kind::Region | Kind::Cluster | Kind::Node | Kind::Tenant | Kind::Role)
    }

    /// All kinds.
    pub const ALL: [Kind; KINDS.len()] = {
        let mut all = [Kind::Gateway; KINDS.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = KINDS[i];
            i += 1;
        }
        all
    };

    /// Those that the model holds by name alone.
    pub(crate) const BY_NAME: &[Kind] = NAMED;

    /// Whether the model holds it by name alone.
    pub(crate) fn is_by_name(self) -> bool {
        NAMED.contains(&self)
    }

    /// Every kind as command lines name it, for those who asked for something else.
    pub fn words() -> String {
        Kind::ALL.map(|k| k.name().to_lowercase()).join(", ")
    }

    /// What is wrong with a word that names no kind, with the nearest there is.
    pub fn unknown(word: &str) -> String {
        let known: Vec<String> = Kind::ALL.iter().map(|k| k.name().to_ascii_lowercase()).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let near = crate::doc::nearest(&word.to_ascii_lowercase(), &known);
        let near = near.map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
        format!("`{}` is no kind of object{near}; there are {}", crate::plain(word), Kind::words())
    }

    /// The kind of this name; upper or lower case and a plural `s` do not matter (for command lines).
    pub fn from_name(s: &str) -> Option<Kind> {
        let s = s.to_ascii_lowercase();
        Kind::ALL.into_iter().find(|k| {
            let name = k.name().to_ascii_lowercase();
            s == name || s.strip_suffix('s') == Some(&name)
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Texts of the first few of a list.
fn texts<T: ToString>(list: impl Iterator<Item = T>) -> String {
    list.take(4).map(|v| v.to_string()).collect::<Vec<_>>().join(", ")
}

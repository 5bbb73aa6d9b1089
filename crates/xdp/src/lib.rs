// SPDX-License-Identifier: Apache-2.0
//! The XDP fast path from user space: loads the program, maps its tables, attaches it, and takes its punts over AF_XDP.
//!
//! Only this crate knows libbpf. [`XdpEngine`] owns program, maps and links; [`BpfMemory`] is the
//! table memory that crate `tables` writes and the program reads,
//! [`BpfSessionMemory`] the session memory of crate `conntrack`, [`BpfStates`] where its state tables (crate `conntrack-compact`) lie. The design is in `docs/design/xdp.md`.

mod afxdp;
mod engine;
mod error;
mod events;
mod flow_cache;
mod grace;
mod inject;
mod link;
mod memory;
pub mod object;
mod old;
mod ports;
mod prober;
mod run;
mod segments;
mod silence;
mod states;
mod switch;
mod sys;

pub use afxdp::{AfXdpOptions, AfXdpSocket, CopyMode, Received, RECEIVE_MAX};
pub use engine::{redirects_buffers, Options, Origin, XdpEngine, LEAST_KERNEL, OBJECT};
pub use error::XdpError;
pub use events::EventRing;
pub use flow_cache::{default_flow_lines, possible_cpus, FLOW_LINES_IN_MIB};
pub use inject::Injector;
pub use link::{Attach, Attached, Mode};
pub use memory::{BpfLineMemory, BpfMemory, BpfSessionMemory};
pub use old::{has_pinned_links, pinned_layouts, OldSessions, OldSizes, OldTables};
pub use ports::QUEUES_MAX;
pub use prober::{Prober, ProberMaps};
pub use run::{TestRun, TestVerdict};
pub use silence::IngressDrop;
pub use states::BpfStates;
pub use switch::SWITCH_OBJECT;

// SPDX-License-Identifier: Apache-2.0
//! `tunny node --openflow`, and what `tunny get openflow` and `tunny get flows` print.

use crate::output::table;
use node::openflow::{FlowView, OpenFlowView};
use std::path::PathBuf;

/// The number of the port that a switch is for its own host.
const LOCAL: u16 = 0xfffe;

/// A switch by a flow file instead of the gateway.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "OpenFlow")]
pub struct OpenFlowArgs {
    /// Be an OpenFlow switch, and no gateway: flows and groups as `ovs-ofctl dump-flows` and `dump-groups` print them, or `add-flows` reads them. May be
    /// given several times. SIGHUP reads the files again; with an error in one of them nothing changes.
    #[arg(long, value_name = "FILE", requires = "openflow_port", conflicts_with_all = GATEWAY)]
    openflow: Vec<PathBuf>,
    /// A port of the OpenFlow switch: an interface and the number that flows know it by, or LOCAL. Flows may also name it.
    #[arg(long, value_name = "INTERFACE=NUMBER", requires = "openflow", value_parser = port)]
    openflow_port: Vec<(String, u16)>,
}

/// What only a gateway knows.
const GATEWAY: [&str; 11] = [
    "config",
    "no_config",
    "state",
    "no_state",
    "engine",
    "pins",
    "no_pins",
    "workers",
    "flow_cache",
    "metrics",
    "adopt",
];

fn port(text: &str) -> Result<(String, u16), String> {
    let (name, number) = text.rsplit_once('=').ok_or("write INTERFACE=NUMBER, as eth1=1")?;
    if name.is_empty() || name.len() > 15 {
        return Err("the name of an interface has 1 to 15 bytes".into());
    }
    let number = match number {
        "LOCAL" => LOCAL,
        number => match number.parse() {
            Ok(number @ 1..=0xfeff) => number,
            _ => return Err(format!("`{number}` is no port: ports are 1 to 65279 and LOCAL")),
        },
    };
    Ok((name.to_string(), number))
}

impl OpenFlowArgs {
    /// The switch, if one is wanted.
    pub fn options(&self, socket: PathBuf) -> Option<node::openflow::Options> {
        let options =
            node::openflow::Options { files: self.openflow.clone(), ports: self.openflow_port.clone(), socket };
        (!self.openflow.is_empty()).then_some(options)
    }
}

/// A switch as a whole.
pub fn text(view: &OpenFlowView) -> String {
    let number = |number: u16| if number == LOCAL { "LOCAL".to_string() } else { number.to_string() };
    let mut text = format!(
        "files        {}\nflows        {} in {} tables, {} groups ({} refused)\nconnections  {} ({} refused)\naddresses    {}\ncache        {}\n",
        view.files.join(", "),
        view.flows,
        view.tables,
        view.groups,
        view.flows_refused,
        view.connections,
        view.connections_refused,
        view.addresses,
        view.cache
    );
    let balanced = if view.balanced { "balanced" } else { "NOT BALANCED: please report it" };
    let dropped: u64 = view.dropped.values().sum();
    text.push_str(&format!(
        "frames       {} received = {} forwarded + {dropped} dropped; {} copies ({balanced})\nreloads      {}\n",
        view.received, view.forwarded, view.copies, view.reloads
    ));
    let refused = view.reload_refused.iter().flatten().map(|why| format!("not reloaded {why}\n"));
    text.extend(view.notes.iter().map(|note| format!("note         {note}\n")).chain(refused));
    let port = |p: &node::openflow::PortView| {
        let (came, went) = (p.received, p.sent);
        let counts = [came.packets, came.bytes, p.lost, p.too_long, went.packets, went.bytes, p.refused];
        [vec![number(p.number), p.name.clone()], counts.map(|count| count.to_string()).to_vec()].concat()
    };
    text.push('\n');
    let heads = ["port", "interface", "received", "bytes", "lost", "too long", "sent", "bytes", "refused"];
    text.push_str(&table(&heads, view.ports.iter().map(port)));
    let row = |(reason, count): (&String, &u64)| vec![reason.clone(), count.to_string()];
    if !view.dropped.is_empty() {
        text.push('\n');
        text.push_str(&table(&["dropped", "frames"], view.dropped.iter().map(row)));
    }
    if !view.partly_dropped.is_empty() {
        text.push('\n');
        text.push_str(&table(&["partly dropped", "frames"], view.partly_dropped.iter().map(row)));
    }
    text
}

/// Flows, in the words of `ovs-ofctl dump-flows`: a file of them can be loaded again.
pub fn flows(flows: &[FlowView]) -> String {
    let line = |flow: &FlowView| {
        let matching = if flow.matching.is_empty() { String::new() } else { format!(",{}", flow.matching) };
        format!(
            " cookie={:#x}, table={}, n_packets={}, n_bytes={}, priority={}{matching} actions={}\n",
            flow.cookie, flow.table, flow.packets, flow.bytes, flow.priority, flow.actions
        )
    };
    flows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_an_interface_and_a_number() {
        assert_eq!(port("eth1=7"), Ok(("eth1".into(), 7)));
        assert_eq!(port("a=b=LOCAL"), Ok(("a=b".into(), LOCAL)));
        for wrong in ["eth1", "=1", "eth1=0", "eth1=65280", "eth1=x", "abcdefghijklmnop=1"] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }
}

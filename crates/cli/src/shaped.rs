// SPDX-License-Identifier: Apache-2.0
//! What `tunny get shaping` prints.

use crate::output::table;

/// Lines and VMs that are shaped.
pub fn text(s: &node::shaping::ShapingView) -> String {
    if s.lines.is_empty() && s.vms.is_empty() && s.customers.is_empty() {
        return "nothing is shaped: `spec.shape` of an Overlay or Vm says how\n".into();
    }
    let mut text = format!(
        "waiting   {} of {} packets, {} of {} bytes\n\n",
        s.waiting, s.waiting_limit, s.waiting_bytes, s.waiting_bytes_limit
    );
    let row = |head: [String; 3], c: &node::shaping::ShapedClass| {
        let numbers = [c.sent, c.sent_bytes, c.dropped, c.waiting, c.waiting_bytes].map(|n| n.to_string());
        let rate = vec![model::quantity::show_bits(c.rate)];
        [head.to_vec(), rate, numbers.to_vec(), vec![format!("{:.1} ms", c.longest_ns as f64 / 1e6)]].concat()
    };
    let head = |first: [&'static str; 3]| {
        [&first[..], &["rate", "sent", "bytes", "dropped", "waiting", "bytes", "longest wait"]].concat()
    };
    if !s.lines.is_empty() {
        let rows = s.lines.iter().map(|l| row([l.overlay.clone(), l.vni.to_string(), l.line.to_string()], &l.class));
        text.push_str(&table(&head(["overlay", "vni", "line"]), rows));
    }
    if !s.customers.is_empty() {
        let row = |c: &node::shaping::ShapedCustomer| {
            let rate = model::quantity::show_bits(c.rate);
            vec![c.port.clone(), c.customer.to_string(), rate, c.sent.to_string(), c.sent_bytes.to_string()]
        };
        text.push_str(&table(&["edge port", "customer", "rate", "sent", "bytes"], s.customers.iter().map(row)));
    }
    if !s.vms.is_empty() {
        let rows = s.vms.iter().map(|v| row([v.vm.clone(), v.vni.to_string(), v.direction.clone()], &v.class));
        text.push_str(&table(&head(["vm", "vni", "direction"]), rows));
    }
    text
}

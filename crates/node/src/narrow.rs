// SPDX-License-Identifier: Apache-2.0
//! Uplinks whose MTU is too small for what every IPv6 link must carry (RFC 8200 §5) in a tunnel.

use crate::dataplane::DataPlane;
use model::{ConfigError, Documents, Gateway, GatewayRole, Kind, Model, Problem};

/// Bytes that every IPv6 link carries.
const LEAST: u32 = 1280;
/// Bytes of a tunnel packet around an inner IP packet: over IPv4, over IPv6.
const AROUND: [u32; 2] = [50, 70];

/// The MTU that the uplinks of a gateway need so that no tunnel packet has to be cut; none if it is content with less.
fn needed(gateway: &Gateway) -> Option<u32> {
    if gateway.role == GatewayRole::Filter || gateway.tunnel_fragments {
        return None;
    }
    let over_v6 = gateway.vtep6.map(|_| LEAST + AROUND[1]);
    over_v6.or(gateway.vtep4.map(|_| LEAST + AROUND[0]))
}

/// What is wrong with each of these uplinks (number in the list, name, MTU) that is too narrow.
pub fn problems<'a>(gateway: &Gateway, uplinks: impl Iterator<Item = (usize, &'a str, u32)>) -> Vec<(usize, Problem)> {
    let Some(needed) = needed(gateway) else { return Vec::new() };
    // No tunnel leaves by an edge port.
    let tunnels = |(_, name, _): &(usize, &str, u32)| gateway.uplinks.iter().any(|u| u == name);
    let narrow = uplinks.filter(|(_, _, mtu)| *mtu > 0 && *mtu < needed).filter(tunnels);
    narrow.map(|(at, name, mtu)| (at, Problem::NarrowInterface { name: name.to_string(), mtu, needed })).collect()
}

/// A warning for each uplink of the gateway that this host does not have, or that is too narrow for tunnels.
pub fn warnings(plane: &DataPlane, model: &Model, docs: &Documents) -> Vec<ConfigError> {
    let Some(gateway) = model.gateway() else { return Vec::new() };
    let doubt = |(at, problem)| docs.doubt(Kind::Gateway, &gateway.name, &format!("spec.uplinks[{at}]"), problem);
    let absent = plane.absent(&gateway.uplinks);
    let absent =
        absent.into_iter().map(|(at, why)| (at, Problem::NoInterface { name: gateway.uplinks[at].clone(), why }));
    absent.chain(problems(gateway, plane.mtus(&gateway.uplinks).into_iter())).map(doubt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_uplink_must_carry() {
        let mut g = Gateway::new("gw".into());
        g.vtep4 = Some([192, 0, 2, 1].into());
        g.uplinks = vec!["eth0".into()];
        let count = |g: &Gateway, mtu| problems(g, [(0, "eth0", mtu)].into_iter()).len();
        assert_eq!((count(&g, 1329), count(&g, 1330), count(&g, 0)), (1, 0, 0));
        g.vtep6 = Some(1u128.into());
        assert_eq!((count(&g, 1349), count(&g, 1350)), (1, 0));
        let said = problems(&g, [(3, "eth0", 1300)].into_iter());
        assert!(problems(&g, [(3, "edge0", 1300)].into_iter()).is_empty(), "no tunnel leaves by it");
        assert!(said[0].0 == 3 && said[0].1.to_string().contains("MTU of 1300 is below 1350"), "{}", said[0].1);
        g.tunnel_fragments = true;
        assert_eq!(count(&g, 1300), 0);
        (g.tunnel_fragments, g.role) = (false, GatewayRole::Filter);
        assert_eq!(count(&g, 1300), 0);
    }
}

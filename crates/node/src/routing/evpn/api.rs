// SPDX-License-Identifier: Apache-2.0
//! The part of GoBGP's gRPC interface (version 3, package `apipb`) that the node uses: messages by the numbers of their fields.

#![allow(missing_docs, reason = "names are the interface's")]

use prost::{Message, Oneof};

/// AFI and SAFI of EVPN.
pub const EVPN: Family = Family { afi: 25, safi: 70 };
/// Type of the tunnel encapsulations (RFC 8365): VXLAN.
pub const VXLAN: u32 = 8;
/// Sub-type of an extended community that is a route target.
pub const ROUTE_TARGET: u32 = 2;

const TYPES: &str = "type.googleapis.com/apipb.";
pub const MAC_IP: &str = "EVPNMACIPAdvertisementRoute";
pub const MULTICAST: &str = "EVPNInclusiveMulticastEthernetTagRoute";
pub const PREFIX: &str = "EVPNIPPrefixRoute";
pub const RD2: &str = "RouteDistinguisherTwoOctetASN";
pub const RD_IP: &str = "RouteDistinguisherIPAddress";
pub const RD4: &str = "RouteDistinguisherFourOctetASN";
pub const ORIGIN: &str = "OriginAttribute";
pub const NEXT_HOP: &str = "NextHopAttribute";
pub const MP_REACH: &str = "MpReachNLRIAttribute";
pub const COMMUNITIES: &str = "ExtendedCommunitiesAttribute";
pub const TUNNEL: &str = "PmsiTunnelAttribute";
pub const TARGET2: &str = "TwoOctetAsSpecificExtended";
pub const TARGET_IP: &str = "IPv4AddressSpecificExtended";
pub const TARGET4: &str = "FourOctetAsSpecificExtended";
pub const ENCAPSULATION: &str = "EncapExtended";
pub const MOBILITY: &str = "MacMobilityExtended";
pub const ROUTER_MAC: &str = "RouterMacExtended";

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl Any {
    /// A message of this name.
    pub fn of(name: &str, message: &impl Message) -> Any {
        Any { type_url: format!("{TYPES}{name}"), value: message.encode_to_vec() }
    }

    /// Name of its message.
    pub fn name(&self) -> &str {
        self.type_url.strip_prefix(TYPES).unwrap_or_default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Family {
    #[prost(int32, tag = "1")]
    pub afi: i32,
    #[prost(int32, tag = "2")]
    pub safi: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Path {
    #[prost(message, optional, tag = "1")]
    pub nlri: Option<Any>,
    #[prost(message, repeated, tag = "2")]
    pub pattrs: Vec<Any>,
    #[prost(bool, tag = "4")]
    pub best: bool,
    #[prost(bool, tag = "5")]
    pub is_withdraw: bool,
    #[prost(message, optional, tag = "9")]
    pub family: Option<Family>,
    #[prost(bool, tag = "12")]
    pub filtered: bool,
    /// No address: it came by this interface.
    #[prost(string, tag = "15")]
    pub neighbor_ip: String,
    #[prost(bool, tag = "17")]
    pub is_nexthop_invalid: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Destination {
    #[prost(string, tag = "1")]
    pub prefix: String,
    #[prost(message, repeated, tag = "2")]
    pub paths: Vec<Path>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPathRequest {
    #[prost(message, optional, tag = "3")]
    pub family: Option<Family>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPathResponse {
    #[prost(message, optional, tag = "1")]
    pub destination: Option<Destination>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AddPathRequest {
    #[prost(message, optional, tag = "3")]
    pub path: Option<Path>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AddPathResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub uuid: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeletePathRequest {
    #[prost(message, optional, tag = "3")]
    pub family: Option<Family>,
    #[prost(message, optional, tag = "4")]
    pub path: Option<Path>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct WatchEventRequest {
    #[prost(message, optional, tag = "2")]
    pub table: Option<WatchTable>,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchTable {
    #[prost(message, repeated, tag = "1")]
    pub filters: Vec<WatchFilter>,
}

/// Type 0: best paths.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WatchFilter {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(bool, tag = "2")]
    pub init: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchEventResponse {
    #[prost(oneof = "Event", tags = "3")]
    pub event: Option<Event>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Event {
    #[prost(message, tag = "3")]
    Table(TableEvent),
}

#[derive(Clone, PartialEq, Message)]
pub struct TableEvent {
    #[prost(message, repeated, tag = "2")]
    pub paths: Vec<Path>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MacIp {
    #[prost(message, optional, tag = "1")]
    pub rd: Option<Any>,
    #[prost(message, optional, tag = "2")]
    pub esi: Option<Segment>,
    #[prost(uint32, tag = "3")]
    pub ethernet_tag: u32,
    #[prost(string, tag = "4")]
    pub mac_address: String,
    #[prost(string, tag = "5")]
    pub ip_address: String,
    #[prost(uint32, repeated, tag = "6")]
    pub labels: Vec<u32>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Segment {
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Multicast {
    #[prost(message, optional, tag = "1")]
    pub rd: Option<Any>,
    #[prost(uint32, tag = "2")]
    pub ethernet_tag: u32,
    #[prost(string, tag = "3")]
    pub ip_address: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct IpPrefix {
    #[prost(message, optional, tag = "1")]
    pub rd: Option<Any>,
    #[prost(message, optional, tag = "2")]
    pub esi: Option<Segment>,
    #[prost(uint32, tag = "3")]
    pub ethernet_tag: u32,
    #[prost(string, tag = "4")]
    pub ip_prefix: String,
    #[prost(uint32, tag = "5")]
    pub ip_prefix_len: u32,
    #[prost(string, tag = "6")]
    pub gw_address: String,
    #[prost(uint32, tag = "7")]
    pub label: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RdOfAs {
    #[prost(uint32, tag = "1")]
    pub admin: u32,
    #[prost(uint32, tag = "2")]
    pub assigned: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RdOfAddress {
    #[prost(string, tag = "1")]
    pub admin: String,
    #[prost(uint32, tag = "2")]
    pub assigned: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Origin {
    #[prost(uint32, tag = "1")]
    pub origin: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct NextHop {
    #[prost(string, tag = "1")]
    pub next_hop: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct MpReach {
    #[prost(message, optional, tag = "1")]
    pub family: Option<Family>,
    #[prost(string, repeated, tag = "2")]
    pub next_hops: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub nlris: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Communities {
    #[prost(message, repeated, tag = "1")]
    pub communities: Vec<Any>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct OfAs {
    #[prost(bool, tag = "1")]
    pub is_transitive: bool,
    #[prost(uint32, tag = "2")]
    pub sub_type: u32,
    #[prost(uint32, tag = "3")]
    pub asn: u32,
    #[prost(uint32, tag = "4")]
    pub local_admin: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OfAddress {
    #[prost(bool, tag = "1")]
    pub is_transitive: bool,
    #[prost(uint32, tag = "2")]
    pub sub_type: u32,
    #[prost(string, tag = "3")]
    pub address: String,
    #[prost(uint32, tag = "4")]
    pub local_admin: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Encapsulation {
    #[prost(uint32, tag = "1")]
    pub tunnel_type: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Mobility {
    #[prost(bool, tag = "1")]
    pub is_sticky: bool,
    #[prost(uint32, tag = "2")]
    pub sequence_num: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RouterMac {
    #[prost(string, tag = "1")]
    pub mac: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PmsiTunnel {
    #[prost(uint32, tag = "1")]
    pub flags: u32,
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    #[prost(uint32, tag = "3")]
    pub label: u32,
    #[prost(bytes = "vec", tag = "4")]
    pub id: Vec<u8>,
}

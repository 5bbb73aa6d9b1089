// SPDX-License-Identifier: Apache-2.0
//! A table of one VPC, laid out by hand word by word: the loader is tested without the writer's help.
#![allow(dead_code)]

pub mod rig;

use abi::*;
use std::sync::Arc;
use tables::LineMemory;
use xdp::{BpfMemory, XdpEngine};

pub const VNI: Vni = Vni(0x123456);
pub const VTEP: u32 = 0x0a00_0001;
pub const NC_A: u32 = 0x0a00_000a;
pub const NC_B: u32 = 0x0a00_000b;
pub const VM_A: u32 = 0xc0a8_0001;
pub const VM_B: u32 = 0xc0a8_0002;
pub const MAC_B: u64 = 0x02_00_00_00_00_0b;
pub const GATEWAY_MAC: u64 = 0x02_ff_00_00_00_01;
pub const SALT: u64 = 0x1234_5678_9abc_def1;

/// The engine; without permission for BPF the test is skipped.
#[track_caller]
pub fn engine() -> Option<XdpEngine> {
    match XdpEngine::load() {
        Ok(engine) => Some(engine),
        Err(e) if e.not_permitted() => {
            skip::test(e, "run it as root");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn set(memory: &BpfMemory, line: u32, word: usize, value: u64) {
    assert!(line < memory.segments() * SEGMENT_LINES && word < 8);
    // SAFETY: inside the mapped segments; one aligned word.
    unsafe { memory.base().cast::<u64>().add(line as usize * 8 + word).write_volatile(value) };
}

pub fn get(memory: &BpfMemory, line: u32, word: usize) -> u64 {
    // SAFETY: as above.
    unsafe { memory.base().cast::<u64>().add(line as usize * 8 + word).read_volatile() }
}

fn word_entry(memory: &BpfMemory, first: u32, key: u64, value: u64) {
    let line = first + bucket_of(hash1(key, SALT), 4);
    let free = (0..7).find(|i| get(memory, line, *i) == 0).unwrap();
    set(memory, line, free, key | value);
}

/// Tenants at 16, members at 32, vm4 at 48, nc4 at 64, drops at 80; records from 100 on.
pub fn build(memory: &Arc<BpfMemory>, options: u64) {
    memory.grow(1).unwrap();
    let table = |line: u64| 4 << TABLE_REF_BUCKETS_SHIFT | line;
    // The VPC has id 1, its chunk lies at 1024. Routes: one leaf that says local everywhere.
    let bucket = 16 + bucket_of(hash1(u64::from(VNI) << TENANT_VNI_SHIFT, SALT), 4);
    set(memory, bucket, 3, (1 << ROOT_LEVELS_SHIFT | ROOT_SIMPLE) as u64 | 112);
    set(memory, bucket, 6, GATEWAY_MAC & 0xffff_ffff);
    set(
        memory,
        bucket,
        0,
        u64::from(VNI) << TENANT_VNI_SHIFT | TENANT_VALID | 1 << TENANT_ID_SHIFT | GATEWAY_MAC >> 32,
    );
    set(memory, 1025, 0, u64::from(VNI));
    for nc in [NC_A, NC_B] {
        word_entry(memory, 32, u64::from(VNI) << 40 | (nc as u64) << 8 | MEMBER_V4, 0);
    }
    word_entry(memory, 64, (NC_A as u64) << WORD_NC4_SHIFT, 1);
    word_entry(memory, 64, (NC_B as u64) << WORD_NC4_SHIFT, 2);
    for i in 0..4 {
        set(memory, 112, i, u64::MAX);
        set(memory, 112, 4 + i, 0x1000_0000_1000_0000);
    }
    set(memory, 112, 3, 0xffff_ffff);
    // VM B: id 9, NC 2.
    let key = u64::from(VNI) << VM4_VNI_SHIFT | (VM_B as u64) << VM4_ADDR_SHIFT;
    let line = 48 + bucket_of(hash1(key, SALT), 4);
    let (v0, v1, v2) = ((MAC_B >> 16) as u32, ((MAC_B as u32) << 16), 9 << 24 | 2 << 4);
    set(memory, line, 3, v0 as u64 | (v1 as u64) << 32);
    set(memory, line, 4, v2 as u64);
    set(memory, line, 0, key | KEY_VALID);
    // NC words at 96, group at 116, next hop at 117, cells at 160.
    set(memory, 96, 2, NC_VALID | 116 << NC_GROUP_SHIFT | (NC_B as u64) << 32);
    set(memory, 116, 0, 1 | 117 << 32);
    set(memory, 117, 0, NEXTHOP_READY | 0x02_aa_00_00_00_02);
    set(memory, 117, 1, 1500 << 48 | 0x02_aa_00_00_00_01);
    set(memory, 117, 2, 1);
    let root = memory.root();
    // SAFETY: Memory promises a whole Root; nobody else is writing.
    unsafe {
        (*root).layout_hash = layout_hash();
        (*root).salt = SALT;
        (*root).options = options | (4789 << OPT_PORT_SHIFT);
        (*root).vtep4 = VTEP as u64;
        (*root).tenants = table(16);
        (*root).members = table(32);
        (*root).vm4 = table(48);
        (*root).nc4 = table(64);
        (*root).drops = table(80);
        (*root).vm_chunks[0] = 160;
        (*root).nc_chunks[0] = 96;
        (*root).tenant_chunks[0] = 1024;
        (*root).tenant_words = 8;
        (*root).slots = 8;
        (*root).xdp_slots = 8;
        (&raw mut (*root).magic).write_volatile(ROOT_MAGIC);
    }
}

/// Line of the VPC's TenantState in `build`'s layout.
const STATE: u32 = 1024 + (1 << TENANT_CHUNK_SHIFT) + 1;

/// RATE_LIMIT words (committed, peak) of all punts and of the VPC's, with fresh meters.
pub fn set_punts(memory: &BpfMemory, total: [u64; 2], tenant: [u64; 2]) {
    (0..8).for_each(|word| set(memory, STATE, word, 0));
    let root = memory.root();
    // SAFETY: Memory promises a whole Root; no program runs meanwhile.
    unsafe {
        [(*root).punt_limit_total, (*root).punt_peak_total] = total;
        [(*root).punt_limit_tenant, (*root).punt_peak_tenant] = tenant;
        [(*root).punt_total_tat, (*root).punt_total_peak_tat] = [0; 2];
    }
}

/// Punts of the VPC that passed and that were limited.
pub fn punts(memory: &BpfMemory) -> (u64, u64) {
    let word = |offset: usize| get(memory, STATE, offset / 8);
    (word(std::mem::offset_of!(TenantState, punts)), word(std::mem::offset_of!(TenantState, punts_limited)))
}

fn ip_sum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4(src: u32, dst: u32, ttl: u8, payload: usize) -> Vec<u8> {
    let mut h = vec![0x45, 0, 0, 0, 0, 0, 0, 0, ttl, 17, 0, 0];
    h[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
    h.extend(src.to_be_bytes());
    h.extend(dst.to_be_bytes());
    let sum = ip_sum(&h);
    h[10..12].copy_from_slice(&sum.to_be_bytes());
    h
}

/// A VXLAN packet from VM A on NC A to `dst`, with a UDP payload of `bytes` bytes.
pub fn packet(src_nc: u32, vni: Vni, dst: u32, bytes: usize) -> Vec<u8> {
    let mut inner = vec![2, 0xff, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x0a, 8, 0];
    inner.extend(ipv4(VM_A, dst, 64, 8 + bytes));
    inner.extend([0x12, 0x34, 0, 53, 0, 0, 0, 0]);
    let l = (8 + bytes) as u16;
    let at = inner.len() - 4;
    inner[at..at + 2].copy_from_slice(&l.to_be_bytes());
    inner.extend((0..bytes).map(|i| i as u8));
    let mut frame = vec![2, 0xaa, 0, 0, 0, 1, 2, 0xaa, 0, 0, 0, 9, 8, 0];
    frame.extend(ipv4(src_nc, VTEP, 64, 16 + inner.len()));
    frame.extend([0xc0, 0, 0x12, 0xb5]);
    frame.extend(((16 + inner.len()) as u16).to_be_bytes());
    frame.extend([0, 0, 8, 0, 0, 0]);
    frame.extend((vni.0 << 8).to_be_bytes());
    frame.extend(inner);
    frame
}

/// Makes `ifindex` the egress port of the only next hop.
pub fn egress(memory: &BpfMemory, ifindex: IfIndex) {
    set(memory, 117, 2, ifindex.into());
}

/// MTU of the only next hop.
pub fn mtu(memory: &BpfMemory, bytes: u64) {
    set(memory, 117, 1, bytes << 48 | 0x02_aa_00_00_00_01);
}

/// The UDP checksum of an outer IPv4 packet whose checksum field is zero.
pub fn udp_checksum(frame: &[u8]) -> u16 {
    let length = u16::from_be_bytes([frame[38], frame[39]]);
    let mut bytes = [&frame[26..34], &[0, 17], &length.to_be_bytes(), &frame[34..34 + length as usize]].concat();
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    match ip_sum(&bytes) {
        0 => 0xffff,
        sum => sum,
    }
}

// SPDX-License-Identifier: Apache-2.0
//! What stage `locate` reads: the VM-NC table, NC records, groups and next hops.

use super::*;

impl Tables {
    /// Where the lookup of an IPv4 address begins, prefetched; for [`Tables::vm4_from`].
    #[inline(always)]
    pub fn vm4_bucket(&self, vni: Vni, addr: u32) -> BucketRef {
        let table = self.root.get(root!(vm4));
        let line = bucket_line(table, hash1(vm4_key(vni, addr), self.salt()), 1);
        self.lines.prefetch(line);
        BucketRef { table, line }
    }

    /// The VM-NC entry of an IPv4 address that is visible in a generation of its tenant.
    #[inline(always)]
    pub fn vm4(&self, vni: Vni, addr: u32, generation: u8) -> Option<VmEntry> {
        let table = self.root.get(root!(vm4));
        let line = bucket_line(table, hash1(vm4_key(vni, addr), self.salt()), 1);
        self.vm4_in(line, vni, addr, || generation)
    }

    /// As [`Tables::vm4`], from a home that was asked for since the reader entered. The tenant's generation may have been
    /// loaded after that: if the table has been replaced since, the lookup begins afresh, so that it never looks for new
    /// entries in an old table.
    #[inline(always)]
    pub fn vm4_from(&self, bucket: BucketRef, tenant: &Tenant, addr: u32) -> Option<VmEntry> {
        if self.root.get(root!(vm4)) != bucket.table {
            return self.vm4_again(tenant, addr);
        }
        self.vm4_in(bucket.line, tenant.vni, addr, || tenant.generation())
    }

    /// The tables of IPv4 packets as they are now. While the reader is inside they stay whole; what is added to others that take
    /// their place may be missed.
    #[inline(always)]
    pub fn tables4(&self) -> Tables4 {
        let word = |offset| self.root.get(offset);
        Tables4 {
            tenants: word(root!(tenants)),
            members: word(root!(members)),
            vm4: word(root!(vm4)),
            salt: self.salt(),
        }
    }

    /// As [`Tables::tenant_bucket`].
    #[inline(always)]
    pub fn tenant_line(&self, at: &Tables4, vni: Vni) -> LineNo {
        let line = bucket_line(at.tenants, tenant_hash(vni, at.salt), 2);
        self.lines.prefetch(line);
        line
    }

    /// The VPC that an IPv4 address leads to from another one, if that one's entry says so by itself (PEER words). Its tree says the
    /// same.
    pub fn peer4(&self, tenant: &Tenant, addr: u32) -> Option<Vni> {
        let mut line = bucket_line(self.root.get(root!(tenants)), tenant_hash(tenant.vni, self.salt()), 2);
        if tenant.root4() >> ROOT_LEVELS_SHIFT & 0xf == 0 {
            return None;
        }
        for _ in 0..CHAIN_MAX {
            let bucket = self.at(line);
            // The packet's roots still stand there, so the words that are loaded now belong to them.
            let entry = (0..3).find(|i| bucket.word(*i) == tenant.key && bucket.word(3 + i) == tenant.roots);
            if let Some(entry) = entry {
                crate::pause!();
                let words = self.at(line.wrapping_add(1));
                let leads = |word: &u64| {
                    let length = (word >> PEER_LENGTH_SHIFT) as u32 & 63;
                    let differ = (word >> PEER_NETWORK_SHIFT ^ u64::from(addr)) >> (32u32.wrapping_sub(length) & 63);
                    word & PEER_ENTRY_MASK == entry as u64 + 1 && differ == 0
                };
                return (0..6)
                    .map(|i| words.word(i))
                    .find(leads)
                    .map(|word| Vni((word >> PEER_VNI_SHIFT) as u32 & 0xff_ffff));
            }
            line = LineNo(bucket.half(15));
            if line == LineNo(0) {
                break;
            }
        }
        None
    }

    /// As [`Tables::member4_bucket`].
    #[inline(always)]
    pub fn member4_line(&self, at: &Tables4, vni: Vni, src: u32) -> LineNo {
        let line = bucket_line(at.members, hash1(member4_key(vni, src), at.salt), 1);
        self.lines.prefetch(line);
        line
    }

    /// Where the lookup of an IPv4 address begins, prefetched; for [`Tables::vm4_lasting`].
    #[inline(always)]
    pub fn vm4_line(&self, at: &Tables4, vni: Vni, addr: u32) -> LineNo {
        let line = bucket_line(at.vm4, hash1(vm4_key(vni, addr), at.salt), 1);
        self.lines.prefetch(line);
        line
    }

    /// The VM-NC entry of an IPv4 address if it is there to stay. `Err` says nothing: there may be an entry that a commit
    /// under way adds or removes, or the table may have been replaced. With a line: so far nothing was found and the lookup
    /// goes on there, once it is loaded.
    #[inline(always)]
    pub fn vm4_lasting(&self, at: &Tables4, line: LineNo, vni: Vni, addr: u32) -> Result<VmEntry, LineNo> {
        if self.root.get(root!(vm4)) != at.vm4 {
            return Err(LineNo(0));
        }
        let lasting = vm4_key(vni, addr) | KEY_VALID;
        let bucket = self.at(line);
        let i = lasting_slot(bucket, lasting);
        if bucket.word(i) != lasting {
            return Err(LineNo(bucket.half(15)));
        }
        crate::pause!();
        Ok(vm4_value(bucket, i))
    }

    #[cold]
    #[inline(never)]
    fn vm4_again(&self, tenant: &Tenant, addr: u32) -> Option<VmEntry> {
        self.vm4(tenant.vni, addr, tenant.generation())
    }

    #[inline(always)]
    fn vm4_in(&self, mut line: LineNo, vni: Vni, addr: u32, generation: impl Fn() -> u8) -> Option<VmEntry> {
        let key = vm4_key(vni, addr);
        for _ in 0..CHAIN_MAX {
            let bucket = self.at(line);
            let lasting = key | KEY_VALID;
            let i = lasting_slot(bucket, lasting);
            if bucket.word(i) == lasting {
                crate::pause!();
                return Some(vm4_value(bucket, i));
            }
            if let Some(i) = visible_in_commit(bucket, key, generation()) {
                crate::pause!();
                return Some(vm4_value(bucket, i));
            }
            line = LineNo(bucket.half(15));
            if line == LineNo(0) {
                return None;
            }
        }
        None
    }

    /// Prefetches for [`Tables::vm4`].
    #[inline(always)]
    pub fn prefetch_vm4(&self, vni: Vni, addr: u32) {
        self.vm4_bucket(vni, addr);
    }

    /// Prefetches for [`Tables::vm6`].
    #[inline(always)]
    pub fn prefetch_vm6(&self, vni: Vni, addr: (u64, u64)) {
        self.prefetch_v6(root!(vm6), vni, addr);
    }

    /// The VM-NC entry of an IPv6 address (upper, lower half) that is visible in a generation of its tenant.
    #[inline(always)]
    pub fn vm6(&self, vni: Vni, addr: (u64, u64), generation: u8) -> Option<VmEntry> {
        let (mac_flags, vm_nc) = self.v6_find(root!(vm6), vni, addr, generation)?;
        Some(vm6_value(mac_flags, vm_nc))
    }

    #[inline(always)]
    pub(super) fn prefetch_v6(&self, table: usize, vni: Vni, addr: (u64, u64)) {
        if let Some(line) = self.bucket(table, hash3(u64::from(vni), addr.0, addr.1, self.salt()), 2) {
            self.lines.prefetch(line);
            self.lines.prefetch(line.wrapping_add(1));
        }
    }

    #[inline(always)]
    pub(super) fn v6_find(&self, table: usize, vni: Vni, addr: (u64, u64), generation: u8) -> Option<(u64, u64)> {
        let hash = hash3(u64::from(vni), addr.0, addr.1, self.salt());
        let key = vm6_key(vni, hash);
        let mut line = self.bucket(table, hash, 2)?;
        for _ in 0..CHAIN_MAX {
            let (first, second) = (self.at(line), self.at(line.wrapping_add(1)));
            for i in 0..3 {
                let word = first.word(i);
                if word & !KEY_STATE_MASK != key || !visible(word, generation) {
                    continue;
                }
                crate::pause!();
                if (v6_word(first, second, 4 + 2 * i), v6_word(first, second, 5 + 2 * i)) == addr {
                    return Some((v6_word(first, second, 10 + 2 * i), v6_word(first, second, 11 + 2 * i)));
                }
            }
            line = LineNo(first.word(3) as u32);
            if line == LineNo(0) {
                return None;
            }
        }
        None
    }

    /// Line of an NC's NC_WORD, to prefetch it; 0 if there is none.
    #[inline(always)]
    pub fn nc_line(&self, nc: NcId) -> LineNo {
        let first = self.root.nc_chunk(nc.0 >> NC_CHUNK_SHIFT).load(Ordering::Acquire);
        if first == 0 {
            return LineNo(0);
        }
        LineNo(first).wrapping_add((nc.0 & ((1 << NC_CHUNK_SHIFT) - 1)) / 8)
    }

    /// The NC_WORD of an NC; 0 if there is none.
    #[inline(always)]
    fn nc_word(&self, nc: NcId) -> u64 {
        self.at(self.nc_line(nc)).word(nc.0 as usize & 7)
    }

    /// The NC with an id.
    #[inline(always)]
    pub fn nc(&self, nc: NcId) -> Option<Nc> {
        let word = self.nc_word(nc);
        if word & NC_VALID == 0 {
            return None;
        }
        let addr = match word & NC_V6 {
            0 => IpAddr::V4(Ipv4Addr::from_bits((word >> 32) as u32)),
            _ => {
                let first = self.root.nc_chunk(nc.0 >> NC_CHUNK_SHIFT).load(Ordering::Acquire);
                let at = (1 << (NC_CHUNK_SHIFT - 3)) + (nc.0 & ((1 << NC_CHUNK_SHIFT) - 1));
                let record = self.at(LineNo(first).wrapping_add(at));
                IpAddr::V6(Ipv6Addr::from_bits(u128::from(record.word(1)) << 64 | u128::from(record.word(2))))
            }
        };
        Some(Nc { addr, group: LineNo((word >> NC_GROUP_SHIFT) as u32 & ROOT_LINE_MASK) })
    }

    /// Group and address of an NC whose address is IPv4.
    #[inline(always)]
    pub fn nc4(&self, nc: NcId) -> Option<(LineNo, u32)> {
        let word = self.nc_word(nc);
        let group = LineNo((word >> NC_GROUP_SHIFT) as u32 & ROOT_LINE_MASK);
        (word & (NC_VALID | NC_V6) == NC_VALID).then_some((group, (word >> 32) as u32))
    }

    /// The next hop that a group chooses for a flow; 0 if the group is empty.
    #[inline(always)]
    pub fn group_member(&self, group: LineNo, flow_hash: u64) -> LineNo {
        let line = self.at(group);
        let count = line.half(0).min(GROUP_NEXTHOPS_MAX);
        if count == 0 {
            return LineNo(0);
        }
        LineNo(line.half(1 + bucket_of(flow_hash, count) as usize))
    }

    /// The next hop at a line.
    #[inline(always)]
    pub fn nexthop(&self, line: LineNo) -> NexthopView {
        let l = self.at(line);
        let (dmac, smac_mtu) = (l.word(0), l.word(1));
        NexthopView {
            dmac: dmac & 0xffff_ffff_ffff,
            smac: smac_mtu & 0xffff_ffff_ffff,
            mtu: (smac_mtu >> 48) as u16,
            ifindex: IfIndex(l.half(4)),
            ready: dmac & NEXTHOP_READY != 0,
        }
    }

    /// Neighbour address of the next hop at a line, for resolution.
    pub fn nexthop_addr(&self, line: LineNo) -> IpAddr {
        let l = self.at(line);
        match (l.word(3), l.word(4)) {
            (0, low) if low <= u64::from(u32::MAX) => IpAddr::V4(Ipv4Addr::from_bits(low as u32)),
            (high, low) => IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))),
        }
    }
}

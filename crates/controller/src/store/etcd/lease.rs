// SPDX-License-Identifier: Apache-2.0
//! Leases of etcd: whoever leads has put the key `leader` under its own, and the key goes when the lease ends.

use super::Shared;
use controller_core::leader::{Ballot, Leader};
use etcd_client::{Compare, CompareOp, Error, PutOptions, Txn, TxnOp, TxnOpResponse};
use std::sync::Arc;

/// A lease, or none yet.
pub struct Lease {
    shared: Arc<Shared>,
}

impl Lease {
    pub(super) fn new(shared: Arc<Shared>) -> Lease {
        Lease { shared }
    }
}

fn said(e: Error) -> String {
    format!("etcd: {e}")
}

impl Ballot for Lease {
    fn grant(&mut self, ttl_s: u64) -> Result<i64, String> {
        let mut client = self.shared.link.client();
        let granted = self.shared.link.wait(async move { client.lease_grant(ttl_s as i64, None).await });
        granted.map(|lease| lease.id()).map_err(said)
    }

    fn renew(&mut self, lease: i64) -> Result<bool, String> {
        let mut client = self.shared.link.client();
        let renewed = self.shared.link.wait(async move { client.lease_keep_alive(lease).await });
        match renewed {
            Ok(_) => Ok(true),
            // That is how this client says that there is no such lease.
            Err(Error::LeaseKeepAliveError(_)) => Ok(false),
            Err(e) => Err(said(e)),
        }
    }

    fn give_up(&mut self, lease: i64) -> Result<(), String> {
        let mut client = self.shared.link.client();
        self.shared.link.wait(async move { client.lease_revoke(lease).await }).map(drop).map_err(said)
    }

    fn stand(&mut self, lease: i64, me: &str) -> Result<Leader, String> {
        let key = self.shared.keys.leader();
        let txn = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(key.clone(), me, Some(PutOptions::new().with_lease(lease))),
                TxnOp::get(key.clone(), None),
            ])
            .or_else([TxnOp::get(key, None)]);
        let mut client = self.shared.link.kv();
        let answer = self.shared.link.wait(async move { client.txn(txn).await }).map_err(said)?;
        let found = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(mut got) => got.take_kvs().pop(),
            _ => None,
        });
        let kv = found.ok_or("etcd: the leader is gone as soon as it was there")?;
        Ok(Leader { term: kv.create_revision(), lease: kv.lease(), url: String::from_utf8_lossy(kv.value()).into() })
    }
}

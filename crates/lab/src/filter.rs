// SPDX-License-Identifier: Apache-2.0
//! The rows of the demonstration about security groups: green-2 has one.

use crate::demo::Row;
use crate::internet::{curl, url, Place, Trial};
use crate::plan::vm;
use crate::progress::Progress;
use crate::LabError;
use std::net::IpAddr;

/// An allowed connection and a refused one, over both families.
pub(crate) fn run(at: Place<'_>, progress: &Progress) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    for v6 in [false, true] {
        progress.step("traffic: allowed and refused by a security group");
        rows.push(allowed(at, v6)?);
        rows.push(refused(at, v6)?);
    }
    Ok(rows)
}

fn address(v6: bool) -> &'static str {
    let vm = vm("green-2").expect("in the plan");
    if v6 {
        vm.v6.0
    } else {
        vm.v4.0
    }
}

fn allowed(at: Place<'_>, v6: bool) -> Result<Row, LabError> {
    let to = address(v6);
    let mut t = Trial::new(at, "allowed by a security group", format!("green-1 → green-2 ({to}) port 5201"), v6)?;
    let traffic = t.traffic("green-1", to, 5201)?;
    t.row(Some(traffic))
}

/// Nothing of it may arrive, and the reason must be counted.
fn refused(at: Place<'_>, v6: bool) -> Result<Row, LabError> {
    let to = address(v6);
    let mut t = Trial::new(at, "refused by a security group", format!("green-1 → green-2 ({to}) port 80"), v6)?;
    let server: Option<IpAddr> = to.parse().ok();
    let status = server.map(|server| curl(&t.ns("green-1"), &url(server, "/"))).transpose()?;
    t.expect(status.as_deref() == Some("000"), || format!("curl: status {status:?}"));
    let drops = t.drops()?;
    let counted = drops.get("filter_ingress").copied().unwrap_or(0);
    t.expect(counted > 0, || format!("filter_ingress was not counted: {drops:?}"));
    t.row(None)
}

// SPDX-License-Identifier: Apache-2.0
//! Every request by every Role, as the table of requests has it; and what bad requests get.

use crate::authenticate::Peer;
use crate::config::Config;
use crate::init::init;
use crate::openapi::{document, REQUESTS};
use crate::service::Controller;
use crate::store::embedded::Embedded;
use crate::types::NewCredential;
use axum::body::{to_bytes, Body};
use axum::http::{Request, StatusCode};
use axum::Router;
use controller_core::credentials::Sort;
use model::{Access, Kind};
use serde_json::Value;
use std::sync::Arc;
use tower::ServiceExt;

pub struct Api {
    pub controller: Arc<Controller>,
    pub router: Router,
    _dir: tempfile::TempDir,
}

const WORLD: &str = "{apiVersion: tunny/v1, kind: Cluster, metadata: {name: a}, spec: {addresses: []}}
---
{apiVersion: tunny/v1, kind: Node, metadata: {name: a1}, spec: {cluster: a}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 1001}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 1002}}
---
{apiVersion: tunny/v1, kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: a}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: tenant}, spec: {access: tenant, tenant: red}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: readOnly}, spec: {access: readOnly}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: node}, spec: {access: node, node: a1}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: host}, spec: {access: host}}
";

impl Api {
    pub async fn start() -> Api {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("c");
        let config = Config {
            region: "north".into(),
            listen: "127.0.0.1:0".parse().unwrap(),
            names: vec!["localhost".into()],
            folder: None,
            store: None,
            url: None,
            evpn: None,
        };
        init(&folder, &config, 1).unwrap();
        assert!(init(&folder, &config, 1).unwrap_err().contains("is not empty"));
        assert_eq!(Config::read(&folder.join(crate::config::FILE)).unwrap(), config);
        let store = Embedded::open(&folder.join(crate::server::STORE)).unwrap();
        let controller = Controller::open(&config, &folder, Arc::new(store), None).unwrap();
        let api = Api { router: crate::api::router(controller.clone()), controller, _dir: dir };
        let (status, _) = api.send("POST", "/v1/apply", Some("operator"), WORLD).await;
        assert_eq!(status, StatusCode::OK);
        api
    }

    pub fn token(&self, role: &str) -> String {
        let wanted = NewCredential { role: role.into(), sort: Sort::Token, days: 1 };
        crate::credentials::create(&self.controller, &wanted).unwrap().token
    }

    pub async fn send(&self, method: &str, path: &str, role: Option<&str>, body: &str) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(role) = role {
            request = request.header("authorization", format!("Bearer {}", self.token(role)));
        }
        let peer = Peer { address: "192.0.2.1:5".parse().unwrap(), certificate: None, controller: false };
        let request = request.extension(peer).body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, kind) = (response.status(), response.headers().get("content-type").cloned());
        if !status.is_success() {
            assert_eq!(kind.unwrap(), "application/problem+json", "{method} {path}");
        } else if ["/v1/watch", "/v1/stream", "/v1/live", "/v1/upstream"]
            .iter()
            .any(|endless| path.starts_with(endless))
        {
            // These have no end.
            return (status, Value::Null);
        }
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !status.is_success() {
            assert!(value["errors"].as_array().is_some_and(|e| !e.is_empty()), "{value}");
            assert_eq!(value["status"], status.as_u16());
        }
        (status, value)
    }
}

#[tokio::test]
async fn every_request_is_for_the_roles_of_the_table_and_no_others() {
    let api = Api::start().await;
    let roles = [
        (Access::Operator, "operator"),
        (Access::ReadOnly, "readOnly"),
        (Access::Tenant, "tenant"),
        (Access::Node, "node"),
        (Access::Host, "host"),
    ];
    let document = document();
    for request in REQUESTS {
        let path = request.path.replace("{kind}", "vpc").replace("{name}", "red").replace("{id}", "none");
        let (status, _) = api.send(request.method, &path, None, "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{} {path}", request.method);
        for (access, role) in roles {
            let (status, value) = api.send(request.method, &path, Some(role), "").await;
            let what = format!("{} {path} by {role}: {status} {value}", request.method);
            match request.access.contains(&access) {
                true => assert!(status != StatusCode::FORBIDDEN && !status.is_server_error(), "{what}"),
                false => assert_eq!(status, StatusCode::FORBIDDEN, "{what}"),
            }
        }
        // Options that would be ignored answer another question; those of the document are known.
        let role = roles.iter().find(|(access, _)| request.access.contains(access)).map(|(_, role)| *role);
        let (status, value) = api.send(request.method, &format!("{path}?frob=1"), role, "{}").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{} {path}?frob=1: {value}", request.method);
        let operation = &document["paths"][request.path][request.method.to_lowercase()];
        for option in operation["parameters"].as_array().unwrap().iter().filter(|p| p["in"] == "query") {
            let name = option["name"].as_str().unwrap();
            let value = if option["schema"]["type"] == "boolean" { "true" } else { "1" };
            let (status, value) = api.send(request.method, &format!("{path}?{name}={value}"), role, "{}").await;
            assert_ne!(status, StatusCode::BAD_REQUEST, "{} {path}?{name}: {value}", request.method);
        }
    }
    // What the table has not, nobody gets.
    for (method, path) in [("GET", "/v1/frob"), ("PUT", "/v1/apply"), ("GET", "/v1"), ("DELETE", "/v1/objects/vpc")] {
        let (status, value) = api.send(method, path, Some("operator"), "").await;
        assert!([StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status), "{method} {path} {status}");
        assert!(value["errors"][0].as_str().unwrap().contains("/v1/apply"), "{value}");
    }
    let refused = api.controller.audit.events(0).into_iter().filter(|e| e.outcome == "refused").count();
    assert!(refused > 30, "{refused}");
}

#[tokio::test]
async fn the_document_has_what_the_table_has() {
    let api = Api::start().await;
    let (status, served) = api.send("GET", "/v1/openapi.json", Some("node"), "").await;
    assert_eq!((status, &served), (StatusCode::OK, &document()));
    let operations = served["paths"].as_object().unwrap().values().map(|p| p.as_object().unwrap().len()).sum::<usize>();
    assert_eq!(operations, REQUESTS.len());
    let schema = &served["components"]["schemas"]["Document"]["oneOf"];
    assert_eq!(schema.as_array().unwrap().len(), Kind::ALL.len());
}

#[tokio::test]
async fn wrong_requests_get_the_status_that_says_how() {
    let api = Api::start().await;
    let vm = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: v}, spec: {vpc: red, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: none}}";
    for (method, path, body, expected, word) in [
        ("POST", "/v1/apply", "kind: [", StatusCode::UNPROCESSABLE_ENTITY, "request:1"),
        ("POST", "/v1/apply", vm, StatusCode::UNPROCESSABLE_ENTITY, "names Nc `none`, which does not exist"),
        ("POST", "/v1/apply?base=99", WORLD, StatusCode::UNPROCESSABLE_ENTITY, "has not been yet"),
        ("POST", "/v1/apply?base=1&replace=true", WORLD, StatusCode::CONFLICT, "has changed since revision 1"),
        ("POST", "/v1/apply?replace=true", "", StatusCode::UNPROCESSABLE_ENTITY, "--allow-empty"),
        ("POST", "/v1/apply?names=true", "[[\"Vpc\", \"blue\"]]", StatusCode::OK, ""),
        ("POST", "/v1/apply?names=true", "[[\"Vpc\", \"blue\"]]", StatusCode::UNPROCESSABLE_ENTITY, "does not exist"),
        ("GET", "/v1/watch?after=99999999", "", StatusCode::OK, ""),
        ("GET", "/v1/objects/frob", "", StatusCode::UNPROCESSABLE_ENTITY, "`frob` is no kind"),
        ("GET", "/v1/objects/vpc?limit=x", "", StatusCode::BAD_REQUEST, "cannot be read"),
        ("GET", "/v1/objects/vpc?continue=vm/x", "", StatusCode::UNPROCESSABLE_ENTITY, "place"),
        ("GET", "/v1/describe/vpc/none", "", StatusCode::NOT_FOUND, "no Vpc named `none`"),
        ("POST", "/v1/credentials", "{}", StatusCode::UNPROCESSABLE_ENTITY, "missing field"),
        (
            "POST",
            "/v1/credentials",
            "{\"role\":\"none\",\"sort\":\"token\",\"days\":1}",
            StatusCode::NOT_FOUND,
            "no Role",
        ),
        (
            "POST",
            "/v1/credentials",
            "{\"role\":\"node\",\"sort\":\"token\",\"days\":0}",
            StatusCode::UNPROCESSABLE_ENTITY,
            "days",
        ),
        ("DELETE", "/v1/credentials/ffffffffffff", "", StatusCode::NOT_FOUND, "no credential"),
        ("POST", "/v1/nodes/none/resync", "", StatusCode::NOT_FOUND, "no Node"),
    ] {
        let (status, value) = api.send(method, path, Some("operator"), body).await;
        assert_eq!(status, expected, "{method} {path}: {value}");
        assert!(value.to_string().contains(word), "{method} {path}: {value}");
    }
    let big = "x".repeat(crate::body::SMALL_MAX + 1);
    let (status, _) = api.send("POST", "/v1/report", Some("node"), &big).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, value) = api.send("GET", "/v1/stream?protocol=99", Some("node"), "").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{value}");
    // Of a Role that is gone a credential opens nothing.
    let token = api.token("readOnly");
    let gone = "[[\"Role\", \"readOnly\"]]";
    assert_eq!(api.send("POST", "/v1/apply?names=true&deletes=1", Some("operator"), gone).await.0, StatusCode::OK);
    let hash = (controller_core::credentials::hash(token.as_bytes()), Sort::Token);
    assert!(crate::authenticate::principal(&api.controller, &hash).is_err());
}

#[tokio::test]
async fn what_the_store_refuses_changes_nothing() {
    let api = Api::start().await;
    let before = api.send("GET", "/v1/status", Some("operator"), "").await.1;
    // Somebody else writes into the same store: what was looked at is not what is.
    let key = crate::keys::object(Kind::Vpc, "blue");
    api.controller.store.txn(&[], &[crate::store::Write::Put(key, b"{}".to_vec())]).unwrap();
    let vpc = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 1002, icmp: off}}";
    let base = before["revision"].as_u64().unwrap();
    let (status, value) = api.send("POST", &format!("/v1/apply?base={base}"), Some("operator"), vpc).await;
    assert_eq!((status, &value["code"]), (StatusCode::CONFLICT, &"outdated".into()), "{value}");
    let after = api.send("GET", "/v1/status", Some("operator"), "").await.1;
    // The revision has moved: each request here has a credential of its own, made before it.
    assert_eq!(before["objects"], after["objects"]);
    let (_, described) = api.send("GET", "/v1/describe/vpc/blue", Some("operator"), "").await;
    assert_eq!(described["object"]["spec"]["icmp"], "on");
}

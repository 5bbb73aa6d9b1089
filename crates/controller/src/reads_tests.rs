// SPDX-License-Identifier: Apache-2.0
//! What those get who look: searches, traces, events, the dashboard; and that a tenant gets what is its own.

use crate::api_tests::Api;
use crate::search::{search, SearchQuery};
use crate::service::Core;
use axum::body::{to_bytes, Body};
use axum::http::{Request, StatusCode};
use controller_core::access::Principal;
use controller_core::region::Region;
use model::{Access, Documents};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// Red and blue are peers; green is by itself. Red web2 is beyond red's routes.
const OBJECTS: &str = "{kind: Nc, metadata: {name: host1}, spec: {address: 192.0.2.11}}
{kind: Nc, metadata: {name: host2}, spec: {address: 192.0.2.12}}
{kind: Vpc, metadata: {name: red}, spec: {vni: 1001, peerings: [rb]}}
{kind: Vpc, metadata: {name: blue}, spec: {vni: 1002, peerings: [rb]}}
{kind: Vpc, metadata: {name: green}, spec: {vni: 1003}}
{kind: Peering, metadata: {name: rb}, spec: {vpcs: [red, blue]}}
{kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: a}}
{kind: Tenant, metadata: {name: others}, spec: {vpcs: [blue, green], cluster: a}}
{kind: Route, spec: {vpc: red, prefix: 10.1.0.0/24, scope: local}}
{kind: Route, spec: {vpc: red, prefix: 10.2.0.0/24, scope: peer, peer: blue}}
{kind: Route, spec: {vpc: blue, prefix: 10.2.0.0/24, scope: local}}
{kind: Route, spec: {vpc: green, prefix: 10.1.0.0/24, scope: local}}
{kind: Vm, metadata: {name: red-web1}, spec: {vpc: red, addresses: [10.1.0.1], mac: \"02:00:00:00:01:01\", nc: host1}}
{kind: Vm, metadata: {name: red-web2}, spec: {vpc: red, addresses: [10.1.0.2], mac: \"02:00:00:00:01:02\", nc: host2}}
{kind: Vm, metadata: {name: blue-db}, spec: {vpc: blue, addresses: [10.2.0.1], mac: \"02:00:00:00:02:01\", nc: host2}}
{kind: Vm, metadata: {name: green-web}, spec: {vpc: green, addresses: [10.1.0.1], mac: \"02:00:00:00:03:01\", nc: host1}}
{kind: Vm, spec: {vpc: green, addresses: [10.1.0.9], mac: \"02:00:00:00:03:09\", nc: host1}}";

async fn api() -> Api {
    let api = Api::start().await;
    let text = OBJECTS.replace("{kind", "{apiVersion: tunny/v1, kind").replace('\n', "\n---\n");
    let (status, value) = api.send("POST", "/v1/apply", Some("operator"), &text).await;
    assert_eq!(status, StatusCode::OK, "{value}");
    api
}

async fn found(api: &Api, role: &str, word: &str) -> Vec<String> {
    let word = node::client::escape(word);
    let (status, value) = api.send("GET", &format!("/v1/search?q={word}"), Some(role), "").await;
    assert_eq!(status, StatusCode::OK, "{value}");
    let list = value["objects"].as_array().unwrap();
    list.iter().map(|o| format!("{} {}", o["kind"].as_str().unwrap(), o["name"].as_str().unwrap())).collect()
}

async fn trace(api: &Api, role: &str, from: &str, to: &str) -> (StatusCode, Value) {
    api.send("POST", "/v1/trace", Some(role), &json!({"from": from, "to": to, "protocol": "udp"}).to_string()).await
}

#[tokio::test]
async fn objects_are_found_by_what_people_know_of_them() {
    let api = api().await;
    for (word, expected) in [
        ("red-web1", &["Vm red-web1"][..]),
        ("web", &["Vm green-web", "Vm red-web1", "Vm red-web2"]),
        ("1003", &["Vpc green"]),
        ("10.1.0.1", &["Vm green-web", "Vm red-web1"]),
        ("10.1.0", &["Vm green-web", "Vm green/10.1.0.9", "Vm red-web1", "Vm red-web2"]),
        ("10.2.0.0/16", &["Vm blue-db"]),
        ("green/10.1.0.9", &["Vm green/10.1.0.9"]),
        ("192.0.2.12", &["Nc host2"]),
        ("host", &["Nc host1", "Nc host2"]),
        ("red", &["Tenant red", "Vpc red", "Vm red-web1", "Vm red-web2"]),
        ("", &["Tenant others", "Tenant red"]),
        ("nothing", &[]),
    ] {
        assert_eq!(found(&api, "operator", word).await, expected, "{word}");
    }
    let (_, value) = api.send("GET", "/v1/search?q=red-web1", Some("readOnly"), "").await;
    let expected = json!({"kind": "Vm", "name": "red-web1", "vpc": "red", "vni": 1001, "tenant": "red", "cluster": "a", "addresses": ["10.1.0.1"], "nc": "host1"});
    assert_eq!(value, json!({"objects": [expected], "more": false}));
    let (_, value) = api.send("GET", "/v1/search?q=web&limit=2", Some("operator"), "").await;
    assert_eq!((value["objects"].as_array().unwrap().len(), &value["more"]), (2, &true.into()));
    let (_, value) = api.send("GET", "/v1/tenants/others", Some("operator"), "").await;
    assert_eq!((&value["vpcs"], &value["vms"], &value["routes"]), (&2.into(), &3.into(), &2.into()));
    // What is renamed or goes is found no more by what it was.
    let gone = "[[\"Vm\", \"red-web1\"]]";
    assert_eq!(api.send("POST", "/v1/apply?names=true", Some("operator"), gone).await.0, StatusCode::OK);
    assert_eq!(found(&api, "operator", "red-web").await, ["Vm red-web2"]);
}

#[tokio::test]
async fn a_tenant_finds_and_traces_what_is_its_own() {
    let api = api().await;
    for (word, expected) in [
        ("web", &["Vm red-web1", "Vm red-web2"][..]),
        ("10.1.0.1", &["Vm red-web1"]),
        ("0.0.0.0/0", &["Vm red-web1", "Vm red-web2"]),
        ("", &["Tenant red"]),
        ("1001", &["Vpc red"]),
    ] {
        assert_eq!(found(&api, "tenant", word).await, expected, "{word}");
    }
    for word in ["green", "blue", "1002", "1003", "10.2.0.1", "green/10.1.0.9", "host", "192.0.2.11", "a1", "others"] {
        assert_eq!(found(&api, "tenant", word).await, [""; 0], "{word}");
    }
    for path in ["/v1/tenants/others", "/v1/tenants/none"] {
        assert_eq!(api.send("GET", path, Some("tenant"), "").await.0, StatusCode::NOT_FOUND);
    }
    let (status, value) = trace(&api, "tenant", "red-web1", "10.1.0.2").await;
    assert_eq!((status, &value["verdict"]), (StatusCode::OK, &"forward".into()), "{value}");
    let text = value.to_string();
    assert!(value["steps"].as_array().unwrap().len() > 3 && !text.contains("192.0.2"), "{text}");
    for (from, to, status) in [
        ("green-web", "10.1.0.9", StatusCode::NOT_FOUND),
        ("green/10.1.0.1", "10.1.0.9", StatusCode::NOT_FOUND),
        ("red-web1", "green-web", StatusCode::NOT_FOUND),
        // The peer is somebody else's: what it holds is not for this tenant to see.
        ("red-web1", "10.2.0.1", StatusCode::FORBIDDEN),
        ("red-web1", "10.2.0.77", StatusCode::FORBIDDEN),
    ] {
        assert_eq!(trace(&api, "tenant", from, to).await.0, status, "{from} {to}");
    }
    let (_, me) = api.send("GET", "/v1/me", Some("tenant"), "").await;
    assert_eq!((&me["access"], &me["tenant"], &me["region"]), (&"tenant".into(), &"red".into(), &"north".into()));
}

#[tokio::test]
async fn a_trace_says_which_way_and_why() {
    let api = api().await;
    for (from, to, verdict, reason, word) in [
        ("red-web1", "red-web2", "forward", Value::Null, "192.0.2.12"),
        ("red-web1", "blue-db", "forward", Value::Null, "192.0.2.12"),
        ("red/10.1.0.1", "10.2.0.1", "forward", Value::Null, "192.0.2.12"),
        ("red-web1", "10.1.0.77", "drop", "vm_unknown".into(), "Create the Vm"),
        ("red-web1", "10.9.0.1", "drop", "route_none".into(), "Add a Route"),
        ("blue-db", "red-web1", "drop", "route_none".into(), "Add a Route"),
    ] {
        let (status, value) = trace(&api, "readOnly", from, to).await;
        assert_eq!(
            (status, &value["verdict"], &value["reason"]),
            (StatusCode::OK, &verdict.into(), &reason),
            "{from} {to}: {value}"
        );
        assert!(value.to_string().contains(word), "{from} {to}: {value}");
        assert_eq!(value["cluster"], "a");
    }
    let (_, value) = trace(&api, "operator", "red-web1", "blue-db").await;
    let end = json!({"vm": "blue-db", "vpc": "blue", "address": "10.2.0.1", "nc": "host2"});
    assert_eq!(value["destination"], end);
    for (from, to, status, word) in [
        ("none", "red-web1", StatusCode::NOT_FOUND, "no Vm `none`"),
        ("10.1.0.1", "10.1.0.9", StatusCode::UNPROCESSABLE_ENTITY, "several VPCs have 10.1.0.1"),
        ("red-web1", "2001:db8::1", StatusCode::UNPROCESSABLE_ENTITY, "family"),
        ("red-web1", "nowhere", StatusCode::NOT_FOUND, "no address"),
    ] {
        let (got, value) = trace(&api, "operator", from, to).await;
        assert!(got == status && value.to_string().contains(word), "{from} {to}: {got} {value}");
    }
    let (status, _) =
        api.send("POST", "/v1/trace", Some("operator"), "{\"from\":\"a\",\"to\":\"b\",\"protocol\":\"x\"}").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn a_trace_follows_a_line_to_its_edge() {
    let api = api().await;
    let text = "{kind: Cluster, metadata: {name: e}, spec: {addresses: [192.0.2.91]}}
{kind: Node, metadata: {name: a9}, spec: {cluster: a, addresses: [192.0.2.90]}}
{kind: Node, metadata: {name: e1}, spec: {cluster: e, addresses: [192.0.2.91]}}
{kind: EdgePort, metadata: {name: east}, spec: {node: e1, interface: edge0}}
{kind: EdgePort, metadata: {name: west}, spec: {node: a9, interface: edge0}}
{kind: Overlay, metadata: {name: far}, spec: {vpc: red, port: east, customer: 100, overlay: 7, mac: \"02:00:00:00:ce:01\"}}
{kind: Overlay, metadata: {name: near}, spec: {vpc: red, port: west, customer: 100, overlay: 7, line: 1, mac: \"02:00:00:00:ce:02\"}}
{kind: Route, spec: {vpc: red, prefix: 10.9.0.0/24, scope: line}}
{kind: Route, spec: {vpc: red, prefix: 10.9.1.0/24, scope: line, line: 1}}
{kind: Route, spec: {vpc: red, prefix: 10.9.2.0/24, scope: line, line: 2}}";
    let text = text.replace("{kind", "{apiVersion: tunny/v1, kind").replace('\n', "\n---\n");
    let (status, value) = api.send("POST", "/v1/apply", Some("operator"), &text).await;
    assert_eq!(status, StatusCode::OK, "{value}");
    for (to, verdict, word) in [
        ("10.9.0.5", "forward", "its line is at another node: sent to 192.0.2.91"),
        ("10.9.1.5", "forward", "customer 100"),
        ("10.9.2.5", "drop", "scope_line"),
    ] {
        let (status, value) = trace(&api, "operator", "red-web1", to).await;
        assert_eq!((status, &value["verdict"]), (StatusCode::OK, &verdict.into()), "{to}: {value}");
        assert!(value.to_string().contains(word), "{to}: {value}");
    }
}

#[tokio::test]
async fn events_around_a_time_and_levels_and_reasons() {
    let api = api().await;
    let (_, all) = api.send("GET", "/v1/events", Some("operator"), "").await;
    let last = all.as_array().unwrap().last().unwrap()["time_ms"].as_u64().unwrap();
    let count = |value: &Value| value.as_array().unwrap().len();
    let (_, near) = api.send("GET", &format!("/v1/events?around={last}&within=60"), Some("readOnly"), "").await;
    assert_eq!(count(&near), count(&all));
    let (_, one) = api.send("GET", &format!("/v1/events?around={last}&limit=1"), Some("readOnly"), "").await;
    assert_eq!(one[0]["time_ms"], last);
    let (_, far) = api.send("GET", &format!("/v1/events?around={}", last - 301_000), Some("readOnly"), "").await;
    assert_eq!(count(&far), 0);
    let levels = json!([{"name": "vms", "used": 30, "limit": 100}, {"name": "flow-cache", "used": 9, "limit": 9}]);
    let report = json!({"installed": 1, "usage": {"engine": "user", "levels": levels}}).to_string();
    api.controller.core().fleet.came(&"a1".into(), "192.0.2.1:5", crate::service::now_ms());
    assert_eq!(api.send("POST", "/v1/report", Some("node"), &report).await.0, StatusCode::NO_CONTENT);
    for _ in 0..3 {
        api.controller.sample();
    }
    let (_, levels) = api.send("GET", "/v1/levels", Some("readOnly"), "").await;
    assert_eq!(count(&levels["samples"]), 3);
    assert!(
        levels["closed"].as_f64() < levels["full"].as_f64()
            && levels["samples"][0]["clusters"] == json!({"a": {"vms": 0.3}})
    );
    let (_, reasons) = api.send("GET", "/v1/reasons", Some("tenant"), "").await;
    assert_eq!(count(&reasons), abi::DropReason::ALL.len());
    assert!(reasons.to_string().contains("route_none"));
}

#[tokio::test]
async fn the_live_stream_begins_with_all_and_goes_on_with_what_changes() {
    let api = api().await;
    let request = Request::get("/v1/live").header("authorization", format!("Bearer {}", api.token("readOnly")));
    let peer =
        crate::authenticate::Peer { address: "192.0.2.1:5".parse().unwrap(), certificate: None, controller: false };
    let response = api.router.clone().oneshot(request.extension(peer).body(Body::empty()).unwrap()).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    let next = async |body: &mut axum::body::BodyDataStream| -> Option<Value> {
        use futures_util::StreamExt;
        let piece = tokio::time::timeout(Duration::from_secs(20), body.next()).await.expect("nothing came");
        piece.map(|piece| serde_json::from_slice(&piece.unwrap()).unwrap())
    };
    let first = next(&mut body).await.unwrap();
    assert_eq!((&first["nodes"][0]["name"], &first["objects"]["Vm"]), (&"a1".into(), &5.into()), "{first}");
    assert!(!first["events"].as_array().unwrap().is_empty());
    let gone = "[[\"Vm\", \"blue-db\"]]";
    assert_eq!(api.send("POST", "/v1/apply?names=true", Some("operator"), gone).await.0, StatusCode::OK);
    let mut events = Vec::new();
    let mut vms = Value::Null;
    while events.is_empty() {
        let line = next(&mut body).await.unwrap();
        events.extend(line["events"].as_array().cloned().unwrap_or_default());
        vms = line["objects"]["Vm"].clone();
    }
    assert_eq!((events.len(), &events[0]["what"], vms), (1, &"delete".into(), 4.into()));
    // Who may look no more is shown nothing more.
    let role = "[[\"Role\", \"readOnly\"]]";
    assert_eq!(api.send("POST", "/v1/apply?names=true&deletes=1", Some("operator"), role).await.0, StatusCode::OK);
    while next(&mut body).await.is_some() {}
}

#[tokio::test]
async fn a_watch_ends_with_its_credential() {
    use futures_util::StreamExt;
    let api = api().await;
    let request = Request::get("/v1/watch").header("authorization", format!("Bearer {}", api.token("readOnly")));
    let peer =
        crate::authenticate::Peer { address: "192.0.2.1:5".parse().unwrap(), certificate: None, controller: false };
    let response = api.router.clone().oneshot(request.extension(peer).body(Body::empty()).unwrap()).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    let role = "[[\"Role\", \"readOnly\"]]";
    assert_eq!(api.send("POST", "/v1/apply?names=true&deletes=1", Some("operator"), role).await.0, StatusCode::OK);
    let late = tokio::time::timeout(Duration::from_secs(20), body.next()).await;
    assert!(late.expect("the watch goes on").is_none());
}

#[tokio::test]
async fn the_dashboard_is_there_for_everybody_and_shows_nothing_by_itself() {
    let api = Api::start().await;
    let get =
        async |path: &str| api.router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    for (path, kind) in [
        ("/", "text/html"),
        ("/ui/app.js", "text/javascript"),
        ("/ui/app.css", "text/css"),
        ("/ui/icon.svg", "image/svg"),
    ] {
        let response = get(path).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_string();
        assert!(response.status() == StatusCode::OK && header("content-type").starts_with(kind), "{path}");
        assert!(header("content-security-policy").starts_with("default-src 'none'"), "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff");
    }
    for path in ["/ui/none.js", "/ui/..%2fCargo.toml", "/ui/"] {
        assert_eq!(get(path).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let response = api.router.clone().oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_scrape_counts_requests_and_refusals() {
    let api = api().await;
    api.send("GET", "/v1/nodes", None, "").await;
    api.send("GET", "/v1/nodes", Some("tenant"), "").await;
    api.controller.sample();
    let peer =
        crate::authenticate::Peer { address: "192.0.2.1:5".parse().unwrap(), certificate: None, controller: false };
    let request = Request::get("/metrics").header("authorization", format!("Bearer {}", api.token("readOnly")));
    let response = api.router.clone().oneshot(request.extension(peer).body(Body::empty()).unwrap()).await.unwrap();
    let text = String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap();
    for line in [
        "tunny_controller_refusals_total{reason=\"credential\"} 1",
        "tunny_controller_refusals_total{reason=\"role\"} 1",
        "tunny_controller_objects{kind=\"Vm\"} 5",
        "tunny_controller_nodes{state=\"unknown\"} 1",
        "tunny_controller_nodes{state=\"away\"} 0",
        "tunny_controller_node_drift{node=\"a1\",cluster=\"a\"} 0",
        "tunny_controller_request_seconds_count{method=\"POST\",path=\"/v1/apply\",code=\"200\"} 2",
        "# TYPE tunny_controller_request_seconds histogram",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

fn million() -> Core {
    let mut text = String::from("{kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.1}}\n");
    for vpc in 0..10_000 {
        text += &format!("{{kind: Vpc, metadata: {{name: vpc-{vpc}}}, spec: {{vni: {}}}}}\n", vpc + 1);
        text += &format!("{{kind: Tenant, metadata: {{name: tenant-{vpc}}}, spec: {{vpcs: [vpc-{vpc}]}}}}\n");
    }
    for vm in 0..1_000_000u32 {
        let [_, a, b, c] = vm.to_be_bytes();
        text += &format!("{{kind: Vm, metadata: {{name: vm-{vm:x}-{}}}, spec: {{vpc: vpc-{}, addresses: [10.{a}.{b}.{c}], mac: \"02:01:00:{a:02x}:{b:02x}:{c:02x}\", nc: n}}}}\n", vm % 977, vm / 100);
    }
    let text = text.replace("{kind", "{apiVersion: tunny/v1, kind").replace('\n', "\n---\n");
    let docs: Documents = model::parse_text("million.yaml", &text).unwrap();
    let region = Region::load(&docs, 1, &BTreeMap::new(), BTreeMap::new()).unwrap();
    Core::new(region, BTreeMap::new())
}

#[test]
#[ignore = "a million VMs: `make test-long`"]
fn long_a_search_over_a_million_vms_is_soon_done() {
    let core = million();
    let operator = Principal { role: "o".into(), access: Access::Operator, tenant: None, node: None };
    let words = |n: u32| {
        [
            format!("vm-{n:x}"),
            format!("{:x}-{}", n, n % 977),
            format!("vpc-{}", n / 100),
            format!("10.{}.{}", n >> 16, n >> 8 & 255),
            format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255),
            "-9".into(),
            "vm".into(),
            format!("absent-{n}"),
            format!("{}", n / 100 + 1),
            "10.0.0.0/8".into(),
        ]
    };
    let mut times = Vec::new();
    for n in (0..1_000_000).step_by(4001) {
        for q in words(n) {
            let begun = Instant::now();
            let results = search(&core, &operator, &SearchQuery { q: q.clone(), limit: 100 });
            times.push((begun.elapsed(), q.clone()));
            assert!(q.starts_with("absent") == results.objects.is_empty(), "{q}: {}", results.objects.len());
        }
    }
    times.sort();
    let at = |share: f64| &times[(times.len() as f64 * share) as usize];
    println!("{} searches: median {:?}, p99 {:?}, worst {:?}", times.len(), at(0.5), at(0.99), times.last().unwrap());
    assert!(at(0.99).0 < Duration::from_millis(50));
}

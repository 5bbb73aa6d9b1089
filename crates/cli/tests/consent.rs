// SPDX-License-Identifier: Apache-2.0
//! What `tunny apply` and `tunny delete` ask on a terminal, and that what is committed is the plan that was shown.

mod terminal;

use serde_json::Value;
use terminal::{Node, Talk};

const VM: &str = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: NAME}, spec: {vpc: red, addresses: [10.0.7.LAST], mac: \"02:00:00:07:00:LAST\", nc: host-a}}\n";

fn vm(last: u8) -> String {
    VM.replace("NAME", &format!("n{last}")).replace("LAST", &last.to_string())
}

fn names(node: &Node) -> Vec<String> {
    let list: Value = serde_json::from_str(&node.said(&["get", "vm", "-o", "json"])).unwrap();
    list.as_array().unwrap().iter().map(|v| v["metadata"]["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_change_between_plan_and_answer_shows_the_new_plan_and_asks_again() {
    let node = Node::start();
    node.write("one.yaml", &vm(10));
    node.write("two.yaml", &vm(20));
    node.write("replace.yaml", &(std::fs::read_to_string(terminal::example()).unwrap() + "---\n" + &vm(10)));
    let mut talk = Talk::begin(&node, &["apply", "--replace", "replace.yaml"]);
    talk.wait("Apply? [y/N] ");
    assert!(talk.said().contains("1 to add, 0 to change, 0 to remove"), "{}", talk.said());
    // Now the same plan would also delete n20.
    node.said(&["apply", "--yes", "two.yaml"]);
    talk.answer("y");
    talk.wait("the configuration changed meanwhile, so nothing was committed; this is the plan now");
    talk.wait("Apply? [y/N] ");
    assert!(talk.said().contains("- Vm n20"), "{}", talk.said());
    assert!(names(&node).contains(&"n20".to_string()) && !names(&node).contains(&"n10".to_string()));
    talk.answer("yes");
    assert_eq!(talk.end(), 0);
    assert!(names(&node).contains(&"n10".to_string()) && !names(&node).contains(&"n20".to_string()));
}

#[test]
fn many_deletions_are_answered_by_their_number_alone() {
    let node = Node::start();
    for (answer, status, left) in [("y", 1, 6), ("5", 1, 6), ("", 1, 6), ("3", 0, 3)] {
        let mut talk = Talk::begin(&node, &["delete", "vm", "green-1", "green-2", "green-3"]);
        talk.wait("Type their number to go on: ");
        assert!(talk.said().contains("This deletes 3 of "), "{}", talk.said());
        talk.answer(answer);
        assert_eq!((talk.end(), names(&node).len()), (status, left), "{answer}");
    }
}

#[test]
fn a_plan_for_another_configuration_is_refused_by_the_api() {
    let node = Node::start();
    let client = node::client::Client::new(&node.socket()).unwrap();
    let body = |last: u8| {
        let mut body = Vec::new();
        node::body::write_document(&mut body, "vm.yaml", vm(last).as_bytes());
        body
    };
    let plan: node::types::ApplyReport = client.post("/v1/apply?dry_run=true", body(11)).unwrap();
    // A second look, and a change that is refused, change nothing.
    let again: node::types::ApplyReport = client.post("/v1/apply?dry_run=true", body(12)).unwrap();
    assert_eq!(plan.base, again.base);
    let path = format!("/v1/apply?base={}", plan.base);
    assert!(client.post::<node::types::ApplyReport>(&path, body(11)).unwrap().committed);
    match client.post::<node::types::ApplyReport>(&path, body(12)) {
        Err(node::client::ClientError::Refused(why)) => assert_eq!(why.code, node::types::OUTDATED, "{why:?}"),
        other => panic!("{other:?}"),
    }
    // An option that there is not is no option.
    assert!(client.post::<node::types::ApplyReport>("/v1/apply?dryrun=true", body(12)).is_err());
    assert!(!names(&node).contains(&"n12".to_string()));
}

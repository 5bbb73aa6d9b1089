// SPDX-License-Identifier: Apache-2.0
//! A list of errors is cut, and says how many more there are.

use model::*;

#[test]
fn a_list_that_is_cut_says_how_many_more_there_are() {
    for (bad, listed) in [(3, 3), (1000, 1000), (1001, 1000), (40_000, 1000)] {
        let unknown =
            |i: usize| format!("{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: v{i}}}, spec: {{vni: 0}}}}\n");
        let dangling = |i: usize| {
            format!("{{apiVersion: tunny/v1, kind: Route, metadata: {{name: r{i}}}, spec: {{vpc: none, prefix: 10.0.0.0/8, scope: local}}}}\n")
        };
        let yaml = (0..bad).map(|i| unknown(i) + "---\n").collect::<String>();
        let missing = (0..bad).map(|i| dangling(i) + "---\n").collect::<String>();
        for text in [yaml, missing] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.yaml");
            std::fs::write(&path, text).unwrap();
            let errors = validate_files(&[path], &mut Model::new()).unwrap_err();
            assert_eq!(ConfigError::count(&errors), bad as u64, "{}", errors[0]);
            assert_eq!(errors.len(), listed + usize::from(bad > listed));
            if bad > listed {
                assert_eq!(
                    errors.last().unwrap().to_string(),
                    format!("and {} more errors, which are not listed", bad - listed)
                );
            }
        }
    }
}

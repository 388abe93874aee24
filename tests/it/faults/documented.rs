//! `docs/faults.md` names a living test for every fault that concerns at-least-once.

use std::collections::BTreeSet;
use std::process::Command;

use testkit::{cells, documented_faults};

/// Those of the list that are not about exactly-once.
fn promised() -> BTreeSet<u8> {
    [1..=3, 6..=30, 33..=45, 48..=64, 67..=67]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn every_fault_has_a_row_whose_test_exists() {
    let listed = Command::new(std::env::current_exe().expect("this binary"))
        .arg("--list")
        .output()
        .expect("a list of tests");
    let tests = String::from_utf8(listed.stdout).expect("text");
    let rows = documented_faults();
    let documented: BTreeSet<u8> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(documented, promised(), "the faults of the document");
    assert_eq!(documented.len(), rows.len(), "one row a fault");
    for (number, row) in rows {
        let test = cells(&row)[4].trim_matches('`').to_owned();
        assert!(
            tests.contains(&format!("{test}: test")),
            "fault {number}: no test {test}"
        );
    }
}

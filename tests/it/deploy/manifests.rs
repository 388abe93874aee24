//! `deploy/kubernetes`: what helm prints, for those who have no helm.

use std::collections::BTreeSet;
use std::process::Command;

use testkit::*;

use super::helm::{succeed, tool};
use super::{files, yaml};

fn name(path: &std::path::Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

/// Files of the folder that helm does not print.
const WRITTEN_BY_HAND: [&str; 4] = ["kustomization.yaml", "print", "secret.example.yaml", "values.yaml"];

/// The names of the files that helm prints.
fn printed() -> BTreeSet<String> {
    let names = files("deploy/kubernetes").into_iter().map(|path| name(&path));
    names.filter(|name| !WRITTEN_BY_HAND.contains(&name.as_str())).collect()
}

#[test]
fn the_kustomization_lists_each_manifest() {
    let kustomization = yaml(&text_of("deploy/kubernetes/kustomization.yaml")).remove(0);
    let listed = kustomization["resources"].as_array().expect("resources").iter();
    let listed: BTreeSet<String> = listed.map(|name| name.as_str().expect("a name").to_owned()).collect();
    let mut manifests = printed();
    assert!(
        manifests.remove("migration.yaml"),
        "it runs to its end before a new version rolls out"
    );
    assert_eq!(listed, manifests);
}

#[test]
fn the_example_of_the_secrets_has_those_that_the_manifests_mount() {
    let secrets = yaml(&text_of("deploy/kubernetes/secret.example.yaml"));
    let secrets: BTreeSet<String> = secrets
        .iter()
        .map(|secret| secret["metadata"]["name"].as_str().expect("a name").to_owned())
        .collect();
    let mut mounted = BTreeSet::new();
    for manifest in ["deployment.yaml", "migration.yaml"] {
        let text = text_of(format!("deploy/kubernetes/{manifest}"));
        let lines = text.lines().zip(text.lines().skip(1));
        let names = lines.filter(|(line, _)| line.trim() == "- secret:");
        mounted.extend(names.map(|(_, name)| name.trim().trim_start_matches("name: ").trim_matches('"').to_owned()));
    }
    assert_eq!(secrets, mounted);
}

#[test]
#[ignore = "needs helm: make test-all"]
fn they_are_what_helm_prints() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut print = Command::new(repository().join("deploy/kubernetes/print"));
    succeed(print.arg(folder.path()));
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(folder.path()).expect("a folder") {
        let path = file.expect("an entry").path();
        let ours = text_of(format!("deploy/kubernetes/{}", name(&path)));
        let theirs = std::fs::read_to_string(&path).expect("text");
        assert_eq!(ours, theirs, "{}: run `make manifests`", name(&path));
        names.insert(name(&path));
    }
    assert_eq!(names, printed());
}

#[test]
#[ignore = "needs kustomize: make test-all"]
fn kustomize_builds_on_them() {
    let built = succeed(tool("kustomize").args(["build", "deploy/kubernetes"]));
    let kinds: BTreeSet<String> = yaml(&built).iter().map(|object| object["kind"].to_string()).collect();
    let expected = ["ConfigMap", "Deployment", "PodDisruptionBudget", "ServiceAccount"];
    assert_eq!(kinds, expected.map(|kind| format!("{kind:?}")).into());

    let folder = tempfile::tempdir_in(repository().join("target")).expect("a folder");
    let overlay = "resources: [../../deploy/kubernetes]\nnamePrefix: shop-\nimages: [{name: outboxd, newTag: 0.2.0}]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), overlay).expect("written");
    let built = succeed(tool("kustomize").arg("build").arg(folder.path()));
    assert!(
        built.contains("name: shop-outboxd") && built.contains("image: outboxd:0.2.0"),
        "{built}"
    );
}

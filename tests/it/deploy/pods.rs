//! What each pod of the chart has, whatever the values: no right that it does not need, and no secret that it could leak.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::helm::{MATRIX, Release, pod_spec};

/// The pods of a release, each with the name of the object that makes it.
fn pods(values: &str) -> Vec<(String, Value)> {
    let objects = Release::of(values).objects();
    let pods = objects.iter().filter_map(|object| {
        let name = format!("{values}: {} {}", object["kind"], object["metadata"]["name"]);
        Some((name, pod_spec(object)?.clone()))
    });
    pods.collect()
}

fn all_pods() -> Vec<(String, Value)> {
    let pods: Vec<(String, Value)> = MATRIX.iter().flat_map(|values| pods(values)).collect();
    assert!(
        pods.len() >= 12,
        "run, doctor and migrate or verify of each: {}",
        pods.len()
    );
    pods
}

#[test]
#[ignore = "needs helm: make test-all"]
fn no_pod_has_a_right_that_it_does_not_need() {
    for (name, pod) in all_pods() {
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        assert_eq!(pod["enableServiceLinks"], false, "{name}");
        for container in pod["containers"].as_array().expect("containers") {
            let security = json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            });
            assert_eq!(container["securityContext"], security, "{name}");
        }
        let security = &pod["securityContext"];
        assert_eq!(security["runAsNonRoot"], true, "{name}");
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        // Where the cluster sets ids itself, the values take ours away.
        let ids = !name.starts_with("by-hand");
        for id in ["runAsUser", "runAsGroup", "fsGroup"] {
            let expected = if ids { json!(65532) } else { Value::Null };
            assert_eq!(security[id], expected, "{name}: {id}");
        }
    }
}

#[test]
#[ignore = "needs helm: make test-all"]
fn secrets_are_files_and_each_named_file_is_mounted() {
    for (name, pod) in all_pods() {
        let container = &pod["containers"][0];
        let environment = container["env"].as_array().expect("an env");
        let by_reference = environment
            .iter()
            .filter(|variable| !variable["valueFrom"]["secretKeyRef"].is_null());
        assert_eq!(
            by_reference.count(),
            0,
            "{name}: a variable does not change when its Secret does"
        );

        let volumes = pod["volumes"].as_array().expect("volumes");
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == "secrets")
            .expect("secrets");
        let mounted = paths(volume);
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        let mount = mounts.iter().find(|mount| mount["name"] == "secrets").expect("secrets");
        assert_eq!(mount["readOnly"], true, "{name}");
        assert!(mount["subPath"].is_null(), "{name}: a file by subPath is never updated");
        assert_eq!(
            named_files(environment),
            mounted,
            "{name}: what is named, and what is mounted"
        );
    }
}

/// The paths of a projected volume.
fn paths(volume: &Value) -> BTreeSet<String> {
    let sources = volume["projected"]["sources"].as_array().expect("sources");
    let items = sources.iter().flat_map(|source| {
        let source = source
            .as_object()
            .and_then(|source| source.values().next())
            .expect("a source");
        // A token has its path beside it, the others have items.
        let items = source["items"].as_array().cloned();
        items.unwrap_or_else(|| vec![source.clone()])
    });
    items
        .map(|item| item["path"].as_str().expect("a path").to_owned())
        .collect()
}

/// The files below the mount that the variables name, also in a property of Kafka's client.
fn named_files(environment: &[Value]) -> BTreeSet<String> {
    let values = environment.iter().filter_map(|variable| variable["value"].as_str());
    let files = values.flat_map(|value| value.lines()).filter_map(|line| {
        let (_, file) = line.split_once("/run/secrets/outboxd/")?;
        Some(file.to_owned())
    });
    files.collect()
}

#[test]
#[ignore = "needs helm: make test-all"]
fn a_pod_may_write_where_its_command_needs_it_and_nowhere_else() {
    let writable = |pod: &Value| {
        let volumes = pod["volumes"].as_array().expect("volumes");
        let temporary = volumes.iter().filter(|volume| !volume["emptyDir"].is_null());
        temporary
            .map(|volume| volume["name"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    for (name, pod) in all_pods() {
        let args = &pod["containers"][0]["args"];
        let expected: &[&str] = match args[0].as_str() {
            Some("verify") => &["temporary"],
            // The password of this release comes from a command, which an init container brings.
            Some("run" | "doctor") if name.starts_with("cloud") => &["temporary", "tools"],
            _ => &[],
        };
        assert_eq!(writable(&pod), expected, "{name}");
    }
}

#[test]
#[ignore = "needs helm: make test-all"]
fn the_doctor_is_given_what_the_relay_is_given() {
    for values in MATRIX {
        let release = Release::of(values);
        let relay = release.object("Deployment", "");
        let doctor = release.object("Pod", "-doctor");
        let (relay, doctor) = (pod_spec(&relay).expect("a pod"), pod_spec(&doctor).expect("a pod"));
        assert_eq!(doctor["volumes"], relay["volumes"], "{values}");
        assert_eq!(doctor["initContainers"], relay["initContainers"], "{values}");
        for part in ["env", "envFrom", "volumeMounts", "image"] {
            let (relay, doctor) = (&relay["containers"][0][part], &doctor["containers"][0][part]);
            assert_eq!(doctor, relay, "{values}: {part}");
        }
        assert_eq!(doctor["containers"][0]["args"], json!(["doctor"]), "{values}");
        assert_eq!(relay["containers"][0]["args"], json!(["run"]), "{values}");
    }
}

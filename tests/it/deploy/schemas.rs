//! The schemas that `chart` checks objects with, made from what Kubernetes and the operators publish themselves.
//!
//! `deploy/dev/tools/schemas/go.mod` pins the versions. To take newer ones: raise them there, and run this test with
//! `OUTBOXD_WRITE_SCHEMAS=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value, json};
use testkit::{repository, text_of};

use super::helm::succeed;
use super::yaml;

/// The kinds that the chart prints, by the name that kubeconform looks for.
const KINDS: [(&str, &str); 11] = [
    ("configmap-v1", "io.k8s.api.core.v1.ConfigMap"),
    ("cronjob-batch-v1", "io.k8s.api.batch.v1.CronJob"),
    ("deployment-apps-v1", "io.k8s.api.apps.v1.Deployment"),
    (
        "horizontalpodautoscaler-autoscaling-v2",
        "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    ),
    ("job-batch-v1", "io.k8s.api.batch.v1.Job"),
    ("networkpolicy-networking-v1", "io.k8s.api.networking.v1.NetworkPolicy"),
    ("pod-v1", "io.k8s.api.core.v1.Pod"),
    (
        "poddisruptionbudget-policy-v1",
        "io.k8s.api.policy.v1.PodDisruptionBudget",
    ),
    ("secret-v1", "io.k8s.api.core.v1.Secret"),
    ("service-v1", "io.k8s.api.core.v1.Service"),
    ("serviceaccount-v1", "io.k8s.api.core.v1.ServiceAccount"),
];

/// Those of the operators: the module, and the file of the definition in it.
const CUSTOM: [(&str, &str, &str); 3] = [
    (
        "podmonitor-monitoring-v1",
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
    (
        "prometheusrule-monitoring-v1",
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    (
        "scaledobject-keda-v1alpha1",
        "github.com/kedacore/keda/v2",
        "config/crd/bases/keda.sh_scaledobjects.yaml",
    ),
];

const DEFINITIONS: &str = "definitions";

/// A module of Go, at the version that is pinned.
struct Module {
    dir: PathBuf,
    /// Its name and version, for the schemas that are made from it.
    origin: String,
}

impl Module {
    fn fetch(name: &str) -> Self {
        let mut go = Command::new("go");
        go.current_dir(repository().join("deploy/dev/tools/schemas"));
        let text = succeed(go.args(["mod", "download", "-json", name]));
        let module: Value = serde_json::from_str(&text).expect("JSON");
        let field = |name: &str| module[name].as_str().expect("text").to_owned();
        Module {
            dir: field("Dir").into(),
            origin: format!("{name} {}", field("Version")),
        }
    }

    fn text(&self, path: &str) -> String {
        text_of(self.dir.join(path))
    }
}

/// The definitions of the kinds that are not Kubernetes' own.
pub fn crds() -> Vec<String> {
    let crds = CUSTOM.iter();
    crds.map(|(_, module, path)| Module::fetch(module).text(path)).collect()
}

/// A schema without its prose that allows no other properties than those it names, as the API server does in strict validation.
fn strict(schema: &Value) -> Value {
    let Some(schema) = schema.as_object() else {
        return schema.clone();
    };
    if schema.get("x-kubernetes-int-or-string").is_some() || schema.get("format") == Some(&json!("int-or-string")) {
        return json!({"type": ["integer", "string"]});
    }
    let mut strict_one = Map::new();
    for (keyword, value) in schema {
        let strict_value = match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let properties = properties.iter().map(|(name, schema)| (name.clone(), strict(schema)));
                Value::Object(properties.collect())
            }
            ("items" | "additionalProperties", _) => strict(value),
            ("$ref", Value::String(reference)) => {
                json!(reference.replace("#/definitions/", "definitions.json#/definitions/"))
            }
            (
                "type" | "enum" | "required" | "pattern" | "minimum" | "maximum" | "minLength" | "maxLength"
                | "minItems" | "maxItems",
                _,
            ) => value.clone(),
            _ => continue,
        };
        strict_one.insert(keyword.clone(), strict_value);
    }
    let is_open =
        schema.contains_key("additionalProperties") || schema.contains_key("x-kubernetes-preserve-unknown-fields");
    if schema.contains_key("properties") && !is_open {
        strict_one.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(strict_one)
}

/// The definitions that a schema needs, with those that they need themselves.
fn needed<'a>(schema: &Value, all: &'a Map<String, Value>, found: &mut BTreeMap<&'a str, Value>) {
    match schema {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                let name = reference.rsplit('/').next().expect("a name");
                let (name, definition) = all.get_key_value(name).expect("a definition");
                if !found.contains_key(name.as_str()) {
                    found.insert(name, definition_of(name, definition));
                    needed(definition, all, found);
                }
            }
            fields.values().for_each(|schema| needed(schema, all, found));
        }
        Value::Array(schemas) => schemas.iter().for_each(|schema| needed(schema, all, found)),
        _ => {}
    }
}

/// A quantity may be written as a number, too.
fn definition_of(name: &str, definition: &Value) -> Value {
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => json!({"type": ["number", "string"]}),
        _ => strict(definition),
    }
}

/// Kubernetes' own: one file of all definitions, and one for each kind that points into it.
fn of_kubernetes() -> BTreeMap<String, Value> {
    let module = Module::fetch("k8s.io/kubernetes");
    let swagger: Value = serde_json::from_str(&module.text("api/openapi-spec/swagger.json")).expect("JSON");
    let all = swagger["definitions"].as_object().expect("definitions");
    let mut definitions = BTreeMap::new();
    let mut schemas = BTreeMap::new();
    for (file, kind) in KINDS {
        let reference = json!({"$ref": format!("#/definitions/{kind}")});
        needed(&reference, all, &mut definitions);
        // That of the group is in the name of the file; without this another version of it would pass.
        let group = &all[kind]["x-kubernetes-group-version-kind"][0];
        let (group, version) = (group["group"].as_str().unwrap_or_default(), &group["version"]);
        let version = version.as_str().expect("a version");
        let api_version = if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        };
        let schema = json!({
            "$comment": module.origin,
            "allOf": [strict(&reference), {"properties": {"apiVersion": {"const": api_version}}}],
        });
        schemas.insert(file.to_owned(), schema);
    }
    let definitions = json!({"$comment": module.origin, "definitions": definitions});
    schemas.insert(DEFINITIONS.to_owned(), definitions);
    schemas
}

/// The schema of the served version of a custom resource.
fn of_operators() -> BTreeMap<String, Value> {
    let schemas = CUSTOM.iter().map(|(file, name, path)| {
        let module = Module::fetch(name);
        let definition = yaml(&module.text(path)).remove(0);
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["served"], true, "{path}");
        let mut schema = strict(&version["schema"]["openAPIV3Schema"]);
        let group = definition["spec"]["group"].as_str().expect("a group");
        let api_version = format!("{group}/{}", version["name"].as_str().expect("a name"));
        schema["properties"]["apiVersion"] = json!({"const": api_version});
        schema["$comment"] = json!(module.origin);
        ((*file).to_owned(), schema)
    });
    schemas.collect()
}

#[test]
#[ignore = "fetches Kubernetes' sources: make test-all"]
fn the_schemas_are_those_of_the_pinned_versions() {
    let folder = repository().join("tests/it/deploy/schemas");
    let mut schemas = of_kubernetes();
    schemas.extend(of_operators());
    let names: BTreeSet<String> = schemas.keys().map(|name| format!("{name}.json")).collect();
    for (name, schema) in &schemas {
        let path = folder.join(format!("{name}.json"));
        let expected = format!("{schema}\n");
        if std::env::var_os("OUTBOXD_WRITE_SCHEMAS").is_some() {
            std::fs::write(&path, &expected).expect("written");
        }
        assert!(
            text_of(&path) == expected,
            "{name} is stale: run this test with OUTBOXD_WRITE_SCHEMAS=1"
        );
    }
    let present = std::fs::read_dir(&folder).expect("a folder");
    let present = present.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    assert_eq!(present.collect::<BTreeSet<_>>(), names);
}

//! Helm, and the other tools that `deploy/dev/setup --all` builds.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::*;

use super::yaml;

/// One of the tools, in the root of the repository.
pub fn tool(name: &str) -> Command {
    let path = repository().join(".dev/bin").join(name);
    assert!(path.exists(), "no {}: run deploy/dev/setup --all", path.display());
    let mut command = Command::new(path);
    command.current_dir(repository());
    command
}

/// Its output; panics with what it said if it fails.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {}{stdout}", stderr_of(&output));
    stdout
}

/// A release of the chart, not yet rendered.
#[derive(Clone, Debug)]
pub struct Release {
    name: String,
    args: Vec<String>,
}

/// The files of values that the chart is tested with.
pub const MATRIX: [&str; 4] = ["minimal", "strimzi", "cloud", "by-hand"];

impl Release {
    /// With one of the files in `deploy/chart/ci`.
    pub fn of(values: &str) -> Self {
        Release::with_file("outboxd", format!("deploy/chart/ci/{values}-values.yaml"))
    }

    /// With a file of values.
    pub fn with_file(name: &str, values: impl AsRef<Path>) -> Self {
        Release::without_values(name).arg("--values", &values.as_ref().display().to_string())
    }

    /// With the defaults, which are not enough.
    pub fn without_values(name: &str) -> Self {
        Release {
            name: name.to_owned(),
            args: Vec::new(),
        }
    }

    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// `path=value`, which helm reads as YAML would.
    pub fn set(self, value: &str) -> Self {
        self.arg("--set", value)
    }

    fn arg(mut self, flag: &str, value: &str) -> Self {
        self.args.extend([flag.to_owned(), value.to_owned()]);
        self
    }

    pub fn template(&self) -> Output {
        let mut helm = tool("helm");
        helm.args(["template", &self.name, "deploy/chart", "--namespace", "shop"]);
        helm.args(&self.args).output().expect("helm runs")
    }

    /// What helm prints.
    pub fn text(&self) -> String {
        let output = self.template();
        assert!(output.status.success(), "{self:?}: {}", stderr_of(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The objects in it.
    pub fn objects(&self) -> Vec<Value> {
        yaml(&self.text())
    }

    /// The only object of a kind and of a name's end.
    pub fn object(&self, kind: &str, suffix: &str) -> Value {
        let objects = self.objects();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut found = objects
            .into_iter()
            .filter(|object| object["kind"] == kind && name(object).ends_with(suffix));
        let object = found.next().unwrap_or_else(|| panic!("{self:?}: no {kind} …{suffix}"));
        assert!(found.next().is_none(), "{self:?}: more than one {kind} …{suffix}");
        object
    }

    /// With what helm refuses it.
    pub fn refusal(&self) -> String {
        let output = self.template();
        assert!(!output.status.success(), "{self:?} is accepted");
        stderr_of(&output)
    }
}

/// The pod's specification in an object that makes pods.
pub fn pod_spec(object: &Value) -> Option<&Value> {
    let path = match object["kind"].as_str()? {
        "Pod" => "/spec",
        "Deployment" | "Job" => "/spec/template/spec",
        "CronJob" => "/spec/jobTemplate/spec/template/spec",
        _ => return None,
    };
    object.pointer(path)
}

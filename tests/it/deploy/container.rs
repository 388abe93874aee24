//! A container as a node of Kubernetes would make it of a pod of the chart: the image's files, the user, the mounts, the memory and the
//! system calls that the pod's specification allows. An OCI runtime (runc) runs it, in the network of this machine.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::*;

use super::helm::{Release, pod_spec, succeed};

/// The image, built by `deploy/image/build`.
pub struct Image {
    pub dir: PathBuf,
    pub config: Value,
    /// The manifest's digest.
    pub digest: String,
}

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::build("target/image"));

impl Image {
    /// The one that all tests share.
    pub fn get() -> &'static Image {
        &IMAGE
    }

    pub fn build(dir: &str) -> Self {
        let mut build = Command::new(repository().join("deploy/image/build"));
        let digest = succeed(build.arg(dir).current_dir(repository())).trim().to_owned();
        let mut image = Image {
            dir: repository().join(dir),
            config: Value::Null,
            digest,
        };
        image.config = image.blob(image.manifest()["config"]["digest"].as_str().expect("a digest"));
        image
    }

    pub fn manifest(&self) -> Value {
        self.blob(&self.digest)
    }

    fn blob_path(&self, digest: &str) -> PathBuf {
        self.dir.join("oci/blobs").join(digest.replace(':', "/"))
    }

    fn blob(&self, digest: &str) -> Value {
        let text = fs::read_to_string(self.blob_path(digest)).expect("a blob");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Its layers, one over the other.
    fn unpack(&self, root: &Path) {
        fs::create_dir(root).expect("a folder");
        for layer in self.manifest()["layers"].as_array().expect("layers") {
            let layer = self.blob_path(layer["digest"].as_str().expect("a digest"));
            let mut tar = Command::new("tar");
            succeed(
                tar.args(["--extract", "--gzip", "--file"])
                    .arg(layer)
                    .arg("--directory")
                    .arg(root),
            );
        }
    }
}

/// A pod of a release, with what the cluster would have besides.
pub struct Pod {
    spec: Value,
    /// The ConfigMap of the release.
    settings: BTreeMap<String, String>,
    /// Secrets and ConfigMaps that are mounted: name, key, content.
    files: Vec<(&'static str, &'static str, String)>,
}

impl Pod {
    pub fn of(release: &Release, kind: &str, suffix: &str) -> Self {
        let object = release.object(kind, suffix);
        let settings = release.object("ConfigMap", "outboxd")["data"].clone();
        Pod {
            spec: pod_spec(&object).expect("a pod").clone(),
            settings: serde_json::from_value(settings).expect("texts"),
            files: Vec::new(),
        }
    }

    pub fn with_file(mut self, name: &'static str, key: &'static str, content: &str) -> Self {
        self.files.push((name, key, content.to_owned()));
        self
    }

    /// Starts its only container.
    pub fn start(&self) -> Container {
        let bundle = tempfile::tempdir().expect("a folder");
        Image::get().unpack(&bundle.path().join("rootfs"));
        let spec = self.runtime_spec(bundle.path());
        fs::write(bundle.path().join("config.json"), spec.to_string()).expect("written");
        let id = format!(
            "outboxd-{}",
            bundle
                .path()
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .trim_start_matches('.')
        );
        let log = bundle.path().join("log");
        let output = File::create(&log).expect("a file");
        let child = Command::new("runc")
            .args(["run", "--bundle"])
            .arg(bundle.path())
            .arg(&id)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file"))
            .stderr(output)
            .spawn()
            .expect("runc runs: deploy/dev/setup --all installs it");
        Container { bundle, id, child, log }
    }

    fn container(&self) -> &Value {
        &self.spec["containers"][0]
    }

    fn runtime_spec(&self, bundle: &Path) -> Value {
        let (pod, container) = (&self.spec["securityContext"], &self.container()["securityContext"]);
        assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
        let memory = bytes(
            self.container()["resources"]["limits"]["memory"]
                .as_str()
                .expect("a limit"),
        );
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": pod["runAsUser"], "gid": pod["runAsGroup"], "additionalGids": [pod["fsGroup"]]},
                "args": self.args(),
                "env": self.environment(),
                "cwd": "/",
                "noNewPrivileges": container["allowPrivilegeEscalation"] == false,
                "capabilities": {"bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": []},
            },
            "root": {"path": "rootfs", "readonly": container["readOnlyRootFilesystem"]},
            "mounts": self.mounts(bundle),
            "linux": {
                "cgroupsPath": format!("/outboxd/{}", bundle.file_name().expect("a name").to_string_lossy()),
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
                "resources": {"memory": {"limit": memory}},
                "seccomp": seccomp(),
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
                "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
            },
        })
    }

    /// The image's entrypoint, and the pod's arguments for its command.
    fn args(&self) -> Vec<Value> {
        let entrypoint = Image::get().config["config"]["Entrypoint"]
            .as_array()
            .expect("an entrypoint");
        let args = self.container()["args"].as_array().expect("arguments");
        entrypoint.iter().chain(args).cloned().collect()
    }

    fn environment(&self) -> Vec<String> {
        let from_map = self.container()["envFrom"].as_array().map_or(0, Vec::len);
        let settings = self.settings.iter().filter(|_| from_map > 0);
        let settings = settings.map(|(name, value)| (name.clone(), value.clone()));
        let variables = self.container()["env"]
            .as_array()
            .expect("an env")
            .iter()
            .map(|variable| {
                let name = variable["name"].as_str().expect("a name").to_owned();
                let value = variable["value"]
                    .as_str()
                    .unwrap_or("11111111-2222-3333-4444-555555555555");
                (name, value.to_owned())
            });
        settings
            .chain(variables)
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    fn mounts(&self, bundle: &Path) -> Vec<Value> {
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
            json!({"destination": "/etc/hosts", "type": "bind", "source": "/etc/hosts", "options": ["bind", "ro"]}),
        ];
        for mount in self.container()["volumeMounts"].as_array().expect("mounts") {
            let volumes = self.spec["volumes"].as_array().expect("volumes");
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == mount["name"])
                .expect("a volume");
            let path = &mount["mountPath"];
            mounts.push(match volume["emptyDir"].is_null() {
                true => {
                    let source = self.projected(volume, &bundle.join("projected"));
                    json!({"destination": path, "type": "bind", "source": source, "options": ["rbind", "ro"]})
                }
                false => json!({"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}),
            });
        }
        mounts
    }

    /// The files of a projected volume, as the kubelet writes them.
    fn projected(&self, volume: &Value, folder: &Path) -> PathBuf {
        let group = self.spec["securityContext"]["fsGroup"].as_u64().expect("a group") as u32;
        let mode = volume["projected"]["defaultMode"].as_u64().expect("a mode") as u32;
        fs::create_dir(folder).expect("a folder");
        for source in volume["projected"]["sources"].as_array().expect("sources") {
            let (_, source) = source
                .as_object()
                .and_then(|source| source.iter().next())
                .expect("a source");
            for item in source["items"].as_array().expect("items") {
                let (name, key) = (source["name"].as_str(), item["key"].as_str());
                let is_it = |file: &&(&str, &str, String)| Some(file.0) == name && Some(file.1) == key;
                let (_, _, content) = self
                    .files
                    .iter()
                    .find(is_it)
                    .unwrap_or_else(|| panic!("no {name:?}, {key:?}"));
                let path = folder.join(item["path"].as_str().expect("a path"));
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(&path, content).expect("written");
                fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
                chown(&path, Some(0), Some(group)).expect("making a pod's files needs root");
            }
        }
        folder.to_owned()
    }
}

/// A quantity of memory.
fn bytes(quantity: &str) -> u64 {
    let number = quantity.strip_suffix("Mi").expect("Mi");
    number.parse::<u64>().expect("a number") << 20
}

/// The profile that container engines use by default (RuntimeDefault), for a process without capabilities.
fn seccomp() -> Value {
    let profile = fs::read_to_string("/usr/share/containers/seccomp.json");
    let profile = profile.expect("a profile: deploy/dev/setup --all installs it");
    let profile: Value = serde_json::from_str(&profile).expect("JSON");
    let names_this = |part: &Value| {
        let arches = part["arches"].as_array();
        arches.is_none_or(|arches| arches.iter().any(|arch| arch == "amd64"))
    };
    let applies = |rule: &&Value| {
        let needs_capability = rule["includes"]["caps"].as_array().is_some_and(|caps| !caps.is_empty());
        let is_excluded = rule["excludes"]["arches"].is_array() && names_this(&rule["excludes"]);
        !needs_capability && names_this(&rule["includes"]) && !is_excluded
    };
    let rules = profile["syscalls"].as_array().expect("rules").iter().filter(applies);
    let rules: Vec<Value> = rules
        .map(|rule| {
            let mut rule = rule.clone();
            let fields = rule.as_object_mut().expect("a rule");
            fields.retain(|name, value| {
                ["names", "action", "args", "errnoRet"].contains(&name.as_str())
                    && !value.is_null()
                    && *value != json!([])
            });
            rule
        })
        .collect();
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    })
}

/// A running container; killed when dropped.
pub struct Container {
    bundle: tempfile::TempDir,
    id: String,
    child: Child,
    log: PathBuf,
}

impl Container {
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Another process in it.
    pub fn exec(&self, args: &[&str]) -> Output {
        let mut runc = Command::new("runc");
        runc.args(["exec", &self.id]).args(args).output().expect("runc runs")
    }

    /// What `runc state` says, such as its pid.
    pub fn state(&self) -> Value {
        let text = succeed(Command::new("runc").args(["state", &self.id]));
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn signal(&self, signal: &str) {
        succeed(Command::new("runc").args(["kill", &self.id, signal]));
    }

    /// How its process ended.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        let stopwatch = Stopwatch::start();
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(
                stopwatch.without_steal() < within,
                "it did not end within {within:?}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A file that it sees, by the path that it sees it at.
    pub fn projected(&self, path: &str) -> PathBuf {
        self.bundle.path().join("projected").join(path)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = Command::new("runc").args(["delete", "--force", &self.id]).output();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("── log of {} ──\n{}", self.id, self.log());
        }
    }
}

//! A real API server takes every object that the chart prints. It has no nodes and no controllers, so nothing runs.

use std::fs::{self, File};
use std::process::{Child, Command, Output, Stdio};

use testkit::*;

use super::helm::{MATRIX, Release, succeed, tool};
use super::schemas::crds;

const TOKEN: &str = "token-of-a-test";
/// A class that the values name, and that somebody has made in their cluster.
const PRIORITY_CLASS: &str = "high";

/// The server and its etcd; killed when dropped.
struct ApiServer {
    processes: Vec<Child>,
    dir: tempfile::TempDir,
    address: String,
}

impl ApiServer {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let [clients, peers] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
        let port = free_port().to_string();
        fs::write(path("tokens"), format!("{TOKEN},admin,admin,system:masters")).expect("written");
        succeed(Command::new("openssl").args(["genrsa", "-out", &path("key"), "2048"]));
        let etcd = [
            ("--data-dir", path("data")),
            ("--listen-client-urls", clients.clone()),
            ("--advertise-client-urls", clients.clone()),
            ("--listen-peer-urls", peers.clone()),
            ("--initial-advertise-peer-urls", peers.clone()),
            ("--initial-cluster", format!("default={peers}")),
        ];
        let server = [
            ("--etcd-servers", clients.clone()),
            ("--cert-dir", path("certificates")),
            ("--bind-address", "127.0.0.1".to_owned()),
            ("--secure-port", port.clone()),
            ("--token-auth-file", path("tokens")),
            ("--authorization-mode", "RBAC".to_owned()),
            ("--service-account-key-file", path("key")),
            ("--service-account-signing-key-file", path("key")),
            ("--service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("--service-cluster-ip-range", "10.0.0.0/24".to_owned()),
        ];
        let spawn = |name: &str, flags: &[(&str, String)]| {
            let log = File::create(path(&format!("{name}.log"))).expect("a log");
            let flags = flags.iter().map(|(flag, value)| format!("{flag}={value}"));
            let mut command = tool(name);
            command
                .args(flags)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let processes = vec![spawn("etcd", &etcd), spawn("kube-apiserver", &server)];
        let server = ApiServer {
            processes,
            dir,
            address: format!("https://127.0.0.1:{port}"),
        };
        eventually(SOON, "the API server to be ready", async || {
            let ready = server.kubectl(&["get", "--raw", "/readyz"]);
            ready.status.success().then_some(())
        })
        .await;
        server
    }

    fn kubectl(&self, args: &[&str]) -> Output {
        let mut kubectl = tool("kubectl");
        kubectl.args([
            "--server",
            &self.address,
            "--insecure-skip-tls-verify",
            "--token",
            TOKEN,
        ]);
        kubectl.arg("--cache-dir").arg(self.dir.path().join("cache"));
        kubectl.args(args).output().expect("kubectl runs")
    }

    fn succeeds(&self, args: &[&str]) -> String {
        let output = self.kubectl(args);
        assert!(output.status.success(), "kubectl {args:?}: {}", stderr_of(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    fn apply(&self, namespace: &str, objects: &str) -> Output {
        let file = self.dir.path().join("objects.yaml");
        fs::write(&file, objects).expect("written");
        let file = file.display().to_string();
        self.kubectl(&[
            "apply",
            "--server-side",
            "--validate=strict",
            "--namespace",
            namespace,
            "--filename",
            &file,
        ])
    }

    /// The versions of all objects of a namespace that the chart may have made. Each change makes another one.
    fn versions(&self, namespace: &str) -> String {
        let kinds = "deployments,configmaps,jobs,cronjobs,services,serviceaccounts,networkpolicies,poddisruptionbudgets,\
                     horizontalpodautoscalers,podmonitors,prometheusrules,scaledobjects";
        let versions = "--output=jsonpath={range .items[*]}{.kind} {.metadata.resourceVersion}{\"\\n\"}{end}";
        self.succeeds(&["get", kinds, "--namespace", namespace, versions])
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[tokio::test]
#[ignore = "needs an API server: make test-all"]
async fn an_api_server_takes_each_object_and_a_second_time_changes_nothing() {
    let server = ApiServer::start().await;
    for crd in crds() {
        let output = server.apply("default", &crd);
        assert!(output.status.success(), "{}", stderr_of(&output));
    }
    server.succeeds(&["wait", "--for=condition=established", "crd", "--all", "--timeout=60s"]);
    server.succeeds(&["create", "priorityclass", PRIORITY_CLASS, "--value=1000"]);
    for values in MATRIX {
        server.succeeds(&["create", "namespace", values]);
        // A controller would make it.
        server.succeeds(&["create", "serviceaccount", "default", "--namespace", values]);
        let printed = Release::of(values).text();
        let output = server.apply(values, &printed);
        assert!(output.status.success(), "{values}: {}", stderr_of(&output));
        let versions = server.versions(values);
        assert!(versions.contains("Deployment "), "{versions}");
        let again = server.apply(values, &printed);
        assert!(again.status.success(), "{values}: {}", stderr_of(&again));
        assert_eq!(server.versions(values), versions, "{values}");
    }
    let wrong = Release::of("minimal")
        .text()
        .replace("livenessProbe:", "livelinessProbe:");
    let refused = server.apply("minimal", &wrong);
    assert!(
        stderr_of(&refused).contains("livelinessProbe"),
        "{}",
        stderr_of(&refused)
    );
}

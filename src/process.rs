//! Identifies this process, and tells whether another one is proven to be gone.
//!
//! A name proves nothing: two processes may carry the same one. Within one machine and process id namespace, a process id with
//! its start time is unique, and the kernel knows whether that process is alive. In Kubernetes a restarted container has a new
//! namespace, but its pod has the same UID, and the container before it has ended.

use std::fs;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pod_uid: Option<String>,
    pub machine: String,
    pub pid: i64,
    /// In clock ticks since the machine booted.
    pub started: i64,
}

impl Identity {
    /// `None` if the system has no `/proc`.
    pub fn of_this_process(pod_uid: Option<String>) -> Option<Self> {
        let pid = i64::from(std::process::id());
        Some(Identity {
            pod_uid,
            machine: machine()?,
            pid,
            started: start_of(pid)?,
        })
    }

    /// Is that process proven to be gone? Its database sessions must have ended, too: see `outbox::Predecessor`.
    pub fn proves_gone(&self, other: &Identity) -> bool {
        if self.machine == other.machine {
            return start_of(other.pid) != Some(other.started);
        }
        self.pod_uid.is_some() && self.pod_uid == other.pod_uid
    }
}

/// The host name, which is the default name of a worker.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "outboxd".to_owned())
}

fn machine() -> Option<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link(Path::new("/proc/self/ns/pid")).ok()?;
    Some(format!("{} {} {}", host.trim(), boot.trim(), namespace.display()))
}

/// When the process started. `None` if there is no such process, or if it has ended and waits to be reaped.
fn start_of(pid: i64) -> Option<i64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `/proc/PID/stat`. The name in it may hold spaces and parentheses, so fields are counted from behind its end.
fn started_in(stat: &str) -> Option<i64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // The state is the third field, the start time the twenty-second.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Identity {
        Identity::of_this_process(Some("pod-1".to_owned())).expect("Linux has /proc")
    }

    #[test]
    fn a_live_process_is_not_gone_and_an_earlier_one_with_its_id_is() {
        let me = me();
        assert!(!me.proves_gone(&me));
        let before_me = Identity {
            started: me.started - 1,
            ..me.clone()
        };
        assert!(me.proves_gone(&before_me), "its process id was used again");
        let no_such = Identity {
            pid: i64::from(i32::MAX),
            ..me.clone()
        };
        assert!(me.proves_gone(&no_such));
    }

    #[test]
    fn on_another_machine_only_the_uid_of_the_pod_proves_anything() {
        let elsewhere = |pod_uid: Option<&str>| Identity {
            machine: "elsewhere".to_owned(),
            pod_uid: pod_uid.map(str::to_owned),
            ..me()
        };
        assert!(
            me().proves_gone(&elsewhere(Some("pod-1"))),
            "a container that was restarted"
        );
        assert!(!me().proves_gone(&elsewhere(Some("pod-2"))));
        assert!(!me().proves_gone(&elsewhere(None)));
        let without_pod = Identity { pod_uid: None, ..me() };
        assert!(!without_pod.proves_gone(&elsewhere(None)), "no UID is not the same UID");
    }

    #[test]
    fn the_start_time_is_read_past_any_name_and_a_zombie_has_ended() {
        let stat = |name: &str, state: &str| {
            let zeros = "0 ".repeat(18);
            format!("42 ({name}) {state} {zeros}12345 7 8")
        };
        assert_eq!(started_in(&stat("outboxd", "S")), Some(12345));
        assert_eq!(started_in(&stat("a) S (b c", "R")), Some(12345));
        assert_eq!(started_in(&stat("outboxd", "Z")), None);
        assert_eq!(started_in("nonsense"), None);
    }
}

//! Processor time and memory of processes, as the kernel counts them.

use std::fs;

use tokio_postgres::Client;

use crate::Outcome;

/// USER_HZ: the same on every Linux that outboxd is built for.
const TICKS_PER_SECOND: f64 = 100.0;

/// PostgreSQL as a whole: the postmaster, its children, and those of them that have ended.
pub struct Postgres {
    postmaster: u32,
}

impl Postgres {
    pub async fn of(db: &Client) -> Outcome<Self> {
        let folder: String = db.query_one("SHOW data_directory", &[]).await?.get(0);
        let file = fs::read_to_string(format!("{folder}/postmaster.pid"))?;
        let postmaster = file.lines().next().ok_or("an empty postmaster.pid")?.trim().parse()?;
        Ok(Postgres { postmaster })
    }

    /// A backend that ends moves from the living to those its postmaster has reaped. Where that happens between the two readings it
    /// would be in neither: so they are repeated.
    pub fn cpu_seconds(&self) -> f64 {
        loop {
            let reaped = self.reaped();
            let living: f64 = processes()
                .filter_map(Stat::of)
                .filter(|stat| stat.parent() == Some(self.postmaster))
                .map(|stat| stat.seconds(&[UTIME, STIME]))
                .sum();
            if self.reaped() == reaped {
                let own = seconds(self.postmaster);
                return own + reaped + living;
            }
        }
    }

    fn reaped(&self) -> f64 {
        Stat::of(self.postmaster).map_or(0.0, |stat| stat.seconds(&[CUTIME, CSTIME]))
    }
}

pub fn seconds(pid: u32) -> f64 {
    Stat::of(pid).map_or(0.0, |stat| stat.seconds(&[UTIME, STIME]))
}

/// A size that `/proc/PID/status` names, in MiB: `VmRSS` now, `VmHWM` at its highest.
pub fn memory_mib(pid: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| {
        line.trim_start_matches(':')
            .split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
    });
    kib.unwrap_or(0.0) / 1024.0
}

/// Places in `/proc/PID/stat`, counted after the command's name.
const PARENT: usize = 1;
const UTIME: usize = 11;
const STIME: usize = 12;
const CUTIME: usize = 13;
const CSTIME: usize = 14;

struct Stat(Vec<String>);

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold spaces and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        Some(Stat(rest.split_whitespace().map(str::to_owned).collect()))
    }

    fn parent(&self) -> Option<u32> {
        self.0.get(PARENT)?.parse().ok()
    }

    fn seconds(&self, fields: &[usize]) -> f64 {
        let ticks = fields
            .iter()
            .filter_map(|field| self.0.get(*field)?.parse::<f64>().ok());
        ticks.sum::<f64>() / TICKS_PER_SECOND
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

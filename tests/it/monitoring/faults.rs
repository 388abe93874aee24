//! A real Prometheus scrapes three real relays while faults are injected. A table says which alerts each fault must raise and which
//! others it may; any other fails the test. A second outbox beside it is at rest, and nothing may fire about that.
//!
//! Durations of the rules are divided by [`FACTOR`], and so are the ages that they compare with.

mod scaled;
mod stage;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use self::stage::Stage;
use super::*;

/// Fifteen minutes become 45 s. With more, the seconds that a worker takes would look like minutes.
const FACTOR: u64 = 20;
/// How long a fault is watched at least: longer than any alert waits before it fires.
const WATCHED: Duration = Duration::from_secs(60);
/// How long an alert may take to fire, and all of them to end. An increase over an hour is seen for three minutes.
const FIRES_WITHIN: Duration = Duration::from_secs(300);
const ENDS_WITHIN: Duration = Duration::from_secs(600);

/// The outbox that the faults are injected into, and the one at rest.
const ORDERS: &str = "orders";
const QUIET: &str = "quiet";
const NAMESPACE: &str = "shop";

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    BrokersDown,
    LateCommits,
    MissingTopic,
    RefusedRows,
    Killed,
    Suspended,
    OpenWriter,
    Paused,
    DatabaseAway,
    NoRelay,
    PartitionWithoutLeader,
    Misuse,
    SequenceWithCache,
    OldSnapshot,
    DyingWorkers,
}

/// A fault, the alerts that it must raise, and the others that it may.
struct Fault {
    what: What,
    must: &'static [&'static str],
    may: &'static [&'static str],
}

const FAULTS: [Fault; 15] = [
    Fault {
        what: What::Killed,
        must: &[],
        may: &[],
    },
    Fault {
        what: What::MissingTopic,
        must: &["OutboxdTopicParked"],
        may: &[],
    },
    Fault {
        what: What::RefusedRows,
        must: &["OutboxdDeadLetters", "OutboxdDeadLettersRising", "OutboxdKeysHeld"],
        may: &[],
    },
    Fault {
        what: What::Paused,
        must: &["OutboxdPauseForgotten"],
        // Of what is published afterwards.
        may: &["OutboxdLatencyBudgetFast"],
    },
    Fault {
        what: What::OpenWriter,
        must: &["OutboxdFloorsStuck"],
        may: &[],
    },
    Fault {
        what: What::SequenceWithCache,
        must: &["OutboxdSequenceMisconfigured"],
        // Floors do not move meanwhile.
        may: &["OutboxdFloorsStuck"],
    },
    Fault {
        what: What::OldSnapshot,
        must: &["OutboxdVacuumHorizonOld"],
        may: &[],
    },
    Fault {
        what: What::LateCommits,
        must: &["OutboxdLatencyBudgetFast"],
        may: &[],
    },
    Fault {
        what: What::BrokersDown,
        must: &[
            "OutboxdKafkaErrors",
            "OutboxdNothingPublished",
            "OutboxdPublishingPaused",
            "OutboxdRowsStuck",
        ],
        may: &["OutboxdLatencyBudgetFast"],
    },
    Fault {
        what: What::PartitionWithoutLeader,
        must: &["OutboxdPartitionPaused"],
        // Rows without an answer are sent again until there is one.
        may: &["OutboxdDuplicates", "OutboxdKafkaErrors", "OutboxdLatencyBudgetFast"],
    },
    Fault {
        what: What::DatabaseAway,
        must: &["OutboxdDatabaseErrors", "OutboxdNotSampled"],
        // What was in flight is sent again. Afterwards there is a backlog.
        may: &[
            "OutboxdLatencyBudgetFast",
            "OutboxdNothingPublished",
            "OutboxdRowsFenced",
            "OutboxdRowsStuck",
        ],
    },
    Fault {
        what: What::NoRelay,
        must: &["OutboxdDown"],
        may: &[
            "OutboxdLatencyBudgetFast",
            "OutboxdNothingPublished",
            "OutboxdRowsStuck",
        ],
    },
    Fault {
        what: What::Suspended,
        must: &["OutboxdLeaseFlapping", "OutboxdRowsFenced"],
        may: &["OutboxdLatencyBudgetFast"],
    },
    Fault {
        what: What::DyingWorkers,
        must: &["OutboxdDuplicates"],
        may: &[],
    },
    Fault {
        what: What::Misuse,
        must: &[
            "OutboxdCommandConflicts",
            "OutboxdCommandsOrphaned",
            "OutboxdCommandsStale",
            "OutboxdConsumerConflicts",
            "OutboxdInboxNotEmptied",
            "OutboxdInboxPoison",
        ],
        may: &[],
    },
];

/// Alerts that no fault raises here, with the reason. Promtool tests them as well as all others.
const ELSEWHERE: [(&str, &str); 6] = [
    (LONG, "its windows are days"),
    (
        "OutboxdCertificateExpiry",
        "nothing here speaks TLS; security::certificates shows the gauge",
    ),
    ("OutboxdCertificateExpiryNear", "the same"),
    (
        "OutboxdConnectionsShort",
        "the pool has a connection for every task, so only its server can be short of them",
    ),
    ("OutboxdPublishedRowsLost", "it takes a failover: faults::failover"),
    ("OutboxdRescanFoundRows", "it takes a bug"),
];

/// Fires as long as its windows remember a fault, so it is left out.
const LONG: &str = "OutboxdLatencyBudgetSlow";

/// Series on the dashboard that have no sample here, with the reason.
const NO_SAMPLE: [(&str, &str); 3] = [
    (
        "outboxd_certificate_not_after_timestamp_seconds",
        "nothing here speaks TLS",
    ),
    ("outboxd_certificate_not_before_timestamp_seconds", "the same"),
    ("process_virtual_memory_max_bytes", "there may be no limit"),
];

/// What the server's other databases notice, too.
const OF_THE_SERVER: &str = "OutboxdVacuumHorizonOld";

#[tokio::test]
#[ignore = "long: make test-all"]
async fn each_fault_raises_its_alerts_and_no_others() {
    let rules = scaled::rules(&text_of(RULES), FACTOR, &[LONG]);
    let mut stage = Stage::set(&rules).await;
    let mut unseen = dashboard::expressions(&format!("namespace=\"{NAMESPACE}\",job=\"{ORDERS}\""), "15s");
    let mut raised: BTreeSet<String> = BTreeSet::new();
    for fault in &FAULTS {
        let fired = watch(&mut stage, fault, &mut unseen).await;
        raised.extend(fired);
    }
    let unseen: Vec<&String> = unseen.iter().filter(|expression| !has_no_sample(expression)).collect();
    assert!(unseen.is_empty(), "these have no sample at any time:\n{unseen:#?}");
    let elsewhere = ELSEWHERE.map(|(alert, _)| alert.to_owned());
    let known: BTreeSet<String> = alerts().into_iter().map(|rule| rule.alert).collect();
    assert!(raised.is_disjoint(&BTreeSet::from(elsewhere.clone())), "{raised:?}");
    assert_eq!(raised.into_iter().chain(elsewhere).collect::<BTreeSet<_>>(), known);
}

fn has_no_sample(expression: &str) -> bool {
    NO_SAMPLE.iter().any(|(series, _)| expression.contains(series))
}

/// Injects a fault and repairs it. Returns the alerts that fired.
async fn watch(stage: &mut Stage, fault: &Fault, unseen: &mut Vec<String>) -> BTreeSet<String> {
    let began = Instant::now();
    println!("{:?}", fault.what);
    stage.inject(fault.what).await;
    let must: BTreeSet<String> = fault.must.iter().map(|alert| (*alert).to_owned()).collect();
    let what = format!("{:?} to raise {must:?}", fault.what);
    eventually(FIRES_WITHIN, &what, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.repeat(fault.what).await;
        unseen.retain(|expression| stage.prometheus.query(expression).is_empty());
        let fired = fired(stage, ORDERS, began);
        assert_allowed(fault, &fired);
        (fired.is_superset(&must) && began.elapsed() > WATCHED).then_some(())
    })
    .await;
    stage.repair(fault.what).await;
    eventually(
        ENDS_WITHIN,
        &format!("the alerts of {:?} to end", fault.what),
        async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let firing = stage.prometheus.query("ALERTS{alertstate=\"firing\"}");
            firing.is_empty().then_some(())
        },
    )
    .await;
    let fired_here = fired(stage, ORDERS, began);
    assert_allowed(fault, &fired_here);
    let elsewhere = fired(stage, QUIET, began);
    assert!(
        elsewhere.iter().all(|alert| alert == OF_THE_SERVER),
        "{:?}: {elsewhere:?} of an outbox at rest",
        fault.what
    );
    println!("    {fired_here:?} in {:?}", began.elapsed());
    fired_here
}

fn assert_allowed(fault: &Fault, fired: &BTreeSet<String>) {
    let is_allowed = |alert: &&String| fault.must.contains(&alert.as_str()) || fault.may.contains(&alert.as_str());
    let others: Vec<&String> = fired.iter().filter(|alert| !is_allowed(alert)).collect();
    assert!(others.is_empty(), "{:?} raised {others:?}", fault.what);
}

/// The alerts of an outbox that have fired since then.
fn fired(stage: &Stage, job: &str, since: Instant) -> BTreeSet<String> {
    let seconds = since.elapsed().as_secs().max(1);
    let fired = format!("max_over_time(ALERTS{{alertstate=\"firing\",job=\"{job}\"}}[{seconds}s])");
    let fired = stage.prometheus.query(&fired);
    fired
        .into_iter()
        .map(|(labels, _)| labels["alertname"].clone())
        .collect()
}

//! Asks Kafka.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use super::check::{CheckId, Diagnosis};
use super::topics::Asker;
use super::{CHECK_TIMEOUT, Settings, brokers, topics};
use crate::kafka::Clients;
use crate::kafka::inspect::Inspector;
use crate::outbox::doctor::UsedTopic;

/// At most so many topics are checked, beside those that are named.
pub const TOPICS_MAX: usize = 50;

/// What is left of a check's time when its answers are due.
const JUDGED_WITHIN: Duration = Duration::from_secs(1);

/// A cluster whose brokers answer.
pub struct Cluster {
    inspector: Inspector,
    clients: Arc<Clients>,
    _renewing: AbortOnDropHandle<()>,
}

/// Waits for a broker. Returns the cluster that can be asked about topics, if one answers.
pub async fn connect(settings: &Settings) -> (Option<Cluster>, Vec<Diagnosis>) {
    if !settings.has_brokers {
        let checks = [CheckId::KafkaConnect, CheckId::KafkaTls, CheckId::KafkaAuth];
        let skipped = checks.map(|check| check.skipped("no --kafka-brokers (OUTBOXD_KAFKA_BROKERS)"));
        return (None, skipped.into());
    }
    let clients = Clients::new(settings.run.kafka.clone());
    let began = Instant::now();
    let until = began + CHECK_TIMEOUT - JUDGED_WITHIN;
    let token = tokio::time::timeout_at(until.into(), clients.first_token()).await;
    if let Err(problem) = token.unwrap_or_else(|_| Err("its source does not answer".to_owned())) {
        return (None, brokers::no_token(problem, &clients.protection()));
    }
    let renewing = clients.keep_renewing_tokens();
    let asked = clients.clone();
    match on_thread(move || Inspector::connect(&asked, until)).await {
        Some(Ok(Some((inspector, count)))) => {
            let diagnoses = brokers::connected(count, &clients.protection(), began.elapsed());
            let cluster = Cluster {
                inspector,
                clients,
                _renewing: renewing,
            };
            (Some(cluster), diagnoses)
        }
        Some(Ok(None)) => {
            let why = clients.why_unreachable(JUDGED_WITHIN).await;
            (None, brokers::not_connected(&why, &clients.protection()))
        }
        Some(Err(error)) => (None, vec![CheckId::KafkaConnect.unknown(error.to_string())]),
        None => (None, vec![CheckId::KafkaConnect.unknown(BROKE_OFF)]),
    }
}

/// Checks the topics that are named or in use. `used` is what the database says of them, or why it says nothing.
pub async fn topics(
    settings: &Settings,
    cluster: Option<Cluster>,
    used: Result<Vec<UsedTopic>, Diagnosis>,
) -> Vec<Diagnosis> {
    let Some(Cluster {
        inspector,
        clients,
        _renewing,
    }) = cluster
    else {
        return topics::skipped("no broker is asked; see kafka.connect");
    };
    let (chosen, mut diagnoses) = choose(&settings.topics, used);
    let names: Vec<String> = chosen.iter().map(|used| used.topic.clone()).collect();
    let until = Instant::now() + CHECK_TIMEOUT - JUDGED_WITHIN;
    let Some(answers) = on_thread(move || inspector.topics(&names, until)).await else {
        diagnoses.push(CheckId::KafkaTopicExists.unknown(BROKE_OFF));
        return diagnoses;
    };
    let protection = clients.protection();
    let asker = Asker {
        brokers: &protection.brokers,
        principal: &protection.principal,
    };
    let judged = chosen.iter().zip(&answers);
    diagnoses.extend(judged.flat_map(|(used, answers)| topics::topic(used, answers, &asker)));
    diagnoses
}

/// The topics to check, and what is to be said of those that are not.
fn choose(named: &[String], used: Result<Vec<UsedTopic>, Diagnosis>) -> (Vec<UsedTopic>, Vec<Diagnosis>) {
    let (mut used, mut diagnoses) = match used {
        Ok(used) => (used, Vec::new()),
        Err(diagnosis) => (Vec::new(), vec![diagnosis]),
    };
    if used.len() > TOPICS_MAX {
        let rest = format!("only the {TOPICS_MAX} topics with most pending rows are checked; name others with --topic");
        diagnoses.push(CheckId::KafkaTopicExists.skipped(rest));
        used.truncate(TOPICS_MAX);
    }
    for topic in named {
        if !used.iter().any(|used| used.topic == *topic) {
            used.push(UsedTopic {
                topic: topic.clone(),
                ..UsedTopic::default()
            });
        }
    }
    if used.is_empty() && diagnoses.is_empty() {
        diagnoses.extend(topics::skipped("no topic is in use; name one with --topic"));
    }
    (used, diagnoses)
}

const BROKE_OFF: &str = "the question broke off, which is a bug";

/// Runs `work` on a thread that may block, since the Kafka client does. `None` if it has panicked.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(topics: usize) -> Vec<UsedTopic> {
        let topic = |number: usize| UsedTopic {
            topic: format!("t{number}"),
            pending: 1,
            ..UsedTopic::default()
        };
        (0..topics).map(topic).collect()
    }

    #[test]
    fn a_topic_is_checked_once_and_named_ones_beyond_the_bound() {
        let named = ["t0".to_owned(), "mine".to_owned(), "mine".to_owned()];
        let (chosen, diagnoses) = choose(&named, Ok(used(TOPICS_MAX)));
        assert_eq!((chosen.len(), diagnoses.len()), (TOPICS_MAX + 1, 0));
        assert_eq!(chosen[0].pending, 1, "what is known of it is kept");
        let (chosen, diagnoses) = choose(&named, Ok(used(TOPICS_MAX + 1)));
        assert_eq!((chosen.len(), diagnoses.len()), (TOPICS_MAX + 1, 1));
        assert!(diagnoses[0].found.contains("--topic"));
    }

    #[test]
    fn where_no_topic_is_in_use_it_is_said_how_to_name_one() {
        let (chosen, diagnoses) = choose(&[], Ok(Vec::new()));
        assert!(chosen.is_empty() && diagnoses.iter().all(|diagnosis| diagnosis.found.contains("--topic")));
        let silence = CheckId::KafkaTopicExists.unknown("the database says nothing");
        let (chosen, diagnoses) = choose(&[], Err(silence));
        assert_eq!(
            (chosen.len(), diagnoses.len()),
            (0, 1),
            "nobody knows whether one is in use"
        );
    }
}

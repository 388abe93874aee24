//! Judges one topic. Pure.

use super::check::{CheckId, Diagnosis};
use crate::kafka::inspect::{PartitionState, TopicAnswers, TopicRefusal, TopicSettings};
use crate::outbox::doctor::UsedTopic;
use crate::words::{count, shell_word, size};

/// A broker refuses records that are further ahead of its clock than its topic allows. Clocks are this far apart at times.
const AHEAD_MIN_MS: i64 = 60_000;

/// Who asks, and where.
#[derive(Debug)]
pub struct Asker<'a> {
    pub brokers: &'a str,
    /// As ACLs name it.
    pub principal: &'a str,
}

const CHECKS: [CheckId; 6] = [
    CheckId::KafkaTopicExists,
    CheckId::KafkaTopicWrite,
    CheckId::KafkaTopicPartitions,
    CheckId::KafkaTopicIsr,
    CheckId::KafkaTopicSize,
    CheckId::KafkaTopicTimestamps,
];

/// All checks of one topic.
pub fn topic(used: &UsedTopic, answers: &TopicAnswers, asker: &Asker<'_>) -> Vec<Diagnosis> {
    let diagnoses = match &answers.partitions {
        Ok(partitions) => vec![
            CheckId::KafkaTopicExists.ok("it exists"),
            write(used, &answers.may_write, asker),
            self::partitions(used, partitions, asker),
            isr(used, partitions, answers.settings.as_ref().ok(), asker),
            size_limit(used, &answers.settings, asker),
            timestamps(used, answers.settings.as_ref().ok(), asker),
        ],
        Err(refusal) => refused(used, refusal, asker),
    };
    let of_topic = |diagnosis: Diagnosis| diagnosis.of_topic(&used.topic);
    diagnoses.into_iter().map(of_topic).collect()
}

/// No topic can be checked, for this reason.
pub fn skipped(reason: &str) -> Vec<Diagnosis> {
    CHECKS.iter().map(|check| check.skipped(reason)).collect()
}

/// Kafka does not describe the topic: one check says why, and the others are skipped.
fn refused(used: &UsedTopic, refusal: &TopicRefusal, asker: &Asker<'_>) -> Vec<Diagnosis> {
    let waiting = match used.pending {
        0 => String::new(),
        pending => format!("; {pending} pending for it"),
    };
    let said = match refusal {
        TopicRefusal::Missing => CheckId::KafkaTopicExists.problem(
            format!("there is no such topic{waiting}"),
            "Its rows are held until it exists. Other topics flow.",
            kafka_topics(asker, used, "--create", "--partitions 8"),
        ),
        TopicRefusal::Forbidden => not_authorized(used, asker),
        TopicRefusal::Other(reason) => CheckId::KafkaTopicExists.unknown(reason.clone()),
    };
    let culprit = said.id;
    let others = CHECKS.iter().filter(|check| **check != culprit);
    let see = format!("see {}", culprit.name());
    let others: Vec<Diagnosis> = others.map(|check| check.skipped(see.clone())).collect();
    [said].into_iter().chain(others).collect()
}

fn not_authorized(used: &UsedTopic, asker: &Asker<'_>) -> Diagnosis {
    CheckId::KafkaTopicWrite.problem(
        format!("{} may not write to it", asker.principal),
        "Its rows are held until it may be written. Other topics flow.",
        kafka_acls(asker, used, "--operation Write --operation Describe"),
    )
}

fn write(used: &UsedTopic, may_write: &Result<Option<bool>, TopicRefusal>, asker: &Asker<'_>) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTopicWrite;
    match may_write {
        Ok(Some(true)) => CHECK.ok(format!("{} may write to it", asker.principal)),
        Ok(Some(false)) | Err(TopicRefusal::Forbidden) => not_authorized(used, asker),
        Ok(None) => CHECK.unknown("the brokers do not tell what a client may do (Kafka 2.3 and newer do)"),
        Err(TopicRefusal::Missing) => CHECK.unknown("the topic has just been deleted"),
        Err(TopicRefusal::Other(reason)) => CHECK.unknown(reason.clone()),
    }
}

fn partitions(used: &UsedTopic, partitions: &[PartitionState], asker: &Asker<'_>) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTopicPartitions;
    let there = count(partitions.len(), "partition");
    let leaderless = numbers(partitions, |partition| !partition.has_leader);
    if !leaderless.is_empty() {
        return CHECK.problem(
            format!("without a leader: {leaderless} of {there}"),
            "Rows of such a partition wait; those of the others are published.",
            format!(
                "Start their brokers: {}",
                kafka_topics(asker, used, "--describe", "--unavailable-partitions")
            ),
        );
    }
    let highest = used.highest_partition.unwrap_or(-1);
    if highest >= partitions.len() as i32 {
        return CHECK.problem(
            format!("a pending row asks for partition {highest}, and there are {there}"),
            "The relay refuses to send such a row, and after --max-attempts it is a dead letter.",
            format!(
                "{} (this moves keys: see docs/operations.md, growing a topic)",
                kafka_topics(asker, used, "--alter", &format!("--partitions {}", highest + 1))
            ),
        );
    }
    CHECK.ok(format!("{there}, each with a leader"))
}

fn isr(
    used: &UsedTopic,
    partitions: &[PartitionState],
    settings: Option<&TopicSettings>,
    asker: &Asker<'_>,
) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTopicIsr;
    let known_min = settings.and_then(|settings| settings.min_in_sync);
    let min = known_min.unwrap_or(1);
    let led = |partition: &PartitionState| partition.has_leader;
    let describe = || kafka_topics(asker, used, "--describe", "");
    let too_few = numbers(partitions, |partition| led(partition) && partition.in_sync < min);
    if !too_few.is_empty() {
        return CHECK.problem(
            format!("fewer than {min} replicas in sync (min.insync.replicas): {too_few}"),
            "Such a partition accepts nothing. Its rows wait; those of the others are published.",
            format!("Start the brokers that are down: {}", describe()),
        );
    }
    let behind = numbers(partitions, |partition| {
        led(partition) && partition.in_sync < partition.replicas
    });
    if !behind.is_empty() {
        return CHECK.advice(
            format!("not all replicas in sync: {behind}"),
            "One more broker down may stop it, or lose what it has acknowledged.",
            format!("Start the brokers that are down: {}", describe()),
        );
    }
    let replicas = partitions.iter().map(|partition| partition.replicas).min().unwrap_or(0);
    let found = format!(
        "{} in sync, {min} needed (min.insync.replicas)",
        count(replicas, "replica")
    );
    if replicas > 1 && known_min.is_none() {
        return CHECK.ok(format!("{} in sync", count(replicas, "replica")));
    }
    match (replicas, min) {
        (0 | 1, _) => CHECK.advice(
            found,
            "What the one broker has acknowledged is lost with its disk.",
            "Use a replication factor of 3 and min.insync.replicas=2 (kafka-reassign-partitions.sh).",
        ),
        (_, 1) => CHECK.advice(
            found,
            "One broker alone may acknowledge a row, which is lost with its disk.",
            kafka_configs(asker, used, "min.insync.replicas=2"),
        ),
        (replicas, min) if min >= replicas => CHECK.advice(
            found,
            "The topic accepts nothing while any of its brokers is down, in a rolling restart for example.",
            kafka_configs(asker, used, &format!("min.insync.replicas={}", replicas - 1)),
        ),
        _ => CHECK.ok(found),
    }
}

fn size_limit(used: &UsedTopic, settings: &Result<TopicSettings, TopicRefusal>, asker: &Asker<'_>) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTopicSize;
    let settings = match settings {
        Ok(settings) => settings,
        Err(TopicRefusal::Forbidden) => {
            return CHECK.advice(
                "how much it takes may not be asked",
                "The relay learns the limit from the first batch that is refused.",
                kafka_acls(asker, used, "--operation DescribeConfigs"),
            );
        }
        Err(TopicRefusal::Missing) => return CHECK.unknown("the topic has just been deleted"),
        Err(TopicRefusal::Other(reason)) => return CHECK.unknown(reason.clone()),
    };
    let Some(limit) = settings.max_message_bytes else {
        return CHECK.unknown("the brokers do not tell its max.message.bytes");
    };
    let largest = used.largest_bytes.unwrap_or(0);
    let found = format!(
        "takes {} (max.message.bytes); largest pending row: {}",
        size(limit),
        size(largest)
    );
    if largest <= limit {
        return CHECK.ok(found);
    }
    CHECK.problem(
        found,
        "Unless compression makes it small enough, Kafka refuses the row, and it becomes a dead letter. Its key waits meanwhile.",
        kafka_configs(asker, used, &format!("max.message.bytes={}", largest + largest / 10 + 1024)),
    )
}

fn timestamps(used: &UsedTopic, settings: Option<&TopicSettings>, asker: &Asker<'_>) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTopicTimestamps;
    match settings {
        None => CHECK.skipped("see kafka.topic.size"),
        Some(settings) if settings.stamps_itself => CHECK.ok("brokers write their own time into records"),
        Some(TopicSettings {
            ahead_max_ms: Some(ahead),
            ..
        }) if *ahead < AHEAD_MIN_MS => CHECK.advice(
            format!("accepts records that are at most {ahead} ms ahead of the broker's clock"),
            "Records have the time of PostgreSQL's clock. If it is that far ahead of a broker's, everything is refused.",
            kafka_configs(asker, used, "message.timestamp.after.max.ms=3600000"),
        ),
        Some(_) => CHECK.ok("accepts the time of PostgreSQL's clock in records"),
    }
}

/// The numbers of these partitions.
fn numbers(partitions: &[PartitionState], is_one: impl Fn(&PartitionState) -> bool) -> String {
    let some = partitions.iter().filter(|partition| is_one(partition));
    some.map(|partition| partition.number.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn kafka_topics(asker: &Asker<'_>, used: &UsedTopic, action: &str, more: &str) -> String {
    let (brokers, topic) = (asker.brokers, &used.topic);
    let command = format!("kafka-topics.sh --bootstrap-server {brokers} {action} --topic {topic} {more}");
    command.trim_end().to_owned()
}

fn kafka_acls(asker: &Asker<'_>, used: &UsedTopic, operations: &str) -> String {
    let (brokers, topic) = (asker.brokers, &used.topic);
    // Of a certificate, and of a token that is not there yet, only brokers know whom they take it for.
    let principal = if asker.principal.starts_with("User:") {
        asker.principal
    } else {
        "User:…"
    };
    let principal = shell_word(principal);
    format!(
        "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal {principal} {operations} --topic {topic}"
    )
}

fn kafka_configs(asker: &Asker<'_>, used: &UsedTopic, setting: &str) -> String {
    let (brokers, topic) = (asker.brokers, &used.topic);
    format!("kafka-configs.sh --bootstrap-server {brokers} --alter --topic {topic} --add-config {setting}")
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    const ASKER: Asker<'_> = Asker {
        brokers: "kafka:9092",
        principal: "User:relay",
    };

    fn used() -> UsedTopic {
        UsedTopic {
            topic: "orders".to_owned(),
            pending: 2,
            largest_bytes: Some(1000),
            highest_partition: None,
        }
    }

    fn partition(number: i32, in_sync: usize) -> PartitionState {
        PartitionState {
            number,
            has_leader: true,
            replicas: 3,
            in_sync,
        }
    }

    fn answers() -> TopicAnswers {
        TopicAnswers {
            partitions: Ok(vec![partition(0, 3), partition(1, 3)]),
            may_write: Ok(Some(true)),
            settings: Ok(TopicSettings {
                max_message_bytes: Some(1_048_588),
                min_in_sync: Some(2),
                stamps_itself: false,
                ahead_max_ms: Some(3_600_000),
            }),
        }
    }

    /// The checks that say something other than ok or skipped.
    fn found(used: &UsedTopic, answers: &TopicAnswers) -> Vec<(CheckId, Verdict)> {
        let diagnoses = topic(used, answers, &ASKER);
        assert_eq!(diagnoses.len(), CHECKS.len());
        let worth_a_word = diagnoses
            .iter()
            .filter(|diagnosis| diagnosis.verdict > Verdict::Skipped);
        worth_a_word
            .map(|diagnosis| (diagnosis.id, diagnosis.verdict))
            .collect()
    }

    fn with_settings(change: impl Fn(&mut TopicSettings)) -> TopicAnswers {
        let mut answers = answers();
        change(answers.settings.as_mut().expect("known"));
        answers
    }

    #[test]
    fn a_topic_that_takes_everything_has_nothing_to_say() {
        assert!(found(&used(), &answers()).is_empty());
    }

    #[test]
    fn one_check_says_why_a_topic_is_not_described() {
        let refused = |refusal: TopicRefusal| TopicAnswers {
            partitions: Err(refusal.clone()),
            may_write: Err(refusal.clone()),
            settings: Err(refusal),
        };
        let missing = refused(TopicRefusal::Missing);
        assert_eq!(
            found(&used(), &missing),
            [(CheckId::KafkaTopicExists, Verdict::Problem)]
        );
        let said = &topic(&used(), &missing, &ASKER)[0];
        assert!(said.found.ends_with("2 pending for it"), "{}", said.found);
        let forbidden = refused(TopicRefusal::Forbidden);
        assert_eq!(
            found(&used(), &forbidden),
            [(CheckId::KafkaTopicWrite, Verdict::Problem)]
        );
        let silent = refused(TopicRefusal::Other("timed out".to_owned()));
        assert_eq!(found(&used(), &silent), [(CheckId::KafkaTopicExists, Verdict::Unknown)]);
    }

    #[test]
    fn an_acl_for_who_only_brokers_know_has_a_place_for_the_name() {
        let asker = Asker {
            principal: "the principal of its certificate",
            ..ASKER
        };
        let fix = kafka_acls(&asker, &used(), "--operation Write");
        let words = shell_words::split(&fix).expect("words");
        let principal = words
            .iter()
            .position(|word| word == "--allow-principal")
            .expect("there")
            + 1;
        assert_eq!(
            (words[principal].as_str(), words[principal + 1].as_str()),
            ("User:…", "--operation")
        );
    }

    #[test]
    fn a_topic_that_may_not_be_written_is_told_from_one_of_which_nobody_knows() {
        let with = |may_write| TopicAnswers { may_write, ..answers() };
        let write = CheckId::KafkaTopicWrite;
        assert_eq!(found(&used(), &with(Ok(Some(false)))), [(write, Verdict::Problem)]);
        assert_eq!(found(&used(), &with(Ok(None))), [(write, Verdict::Unknown)]);
        let diagnosis = &topic(&used(), &with(Ok(Some(false))), &ASKER)[1];
        let fix = diagnosis.fix.as_deref().unwrap_or_default();
        assert!(fix.contains("--allow-principal User:relay --operation Write"), "{fix}");
    }

    #[test]
    fn a_partition_needs_a_leader_and_a_row_its_partition() {
        let mut leaderless = answers();
        leaderless.partitions = Ok(vec![
            partition(0, 3),
            PartitionState {
                has_leader: false,
                ..partition(1, 0)
            },
        ]);
        let partitions = CheckId::KafkaTopicPartitions;
        assert_eq!(found(&used(), &leaderless), [(partitions, Verdict::Problem)]);
        let asks_for = |highest| UsedTopic {
            highest_partition: Some(highest),
            ..used()
        };
        assert!(found(&asks_for(1), &answers()).is_empty());
        assert_eq!(found(&asks_for(2), &answers()), [(partitions, Verdict::Problem)]);
    }

    #[test]
    fn replicas_are_judged_by_what_the_topic_needs_and_has() {
        let isr = CheckId::KafkaTopicIsr;
        let judged = |replicas, in_sync, min| {
            let mut answers = with_settings(|settings| settings.min_in_sync = Some(min));
            let one = PartitionState {
                replicas,
                ..partition(0, in_sync)
            };
            answers.partitions = Ok(vec![one]);
            let found = found(&used(), &answers);
            assert!(found.iter().all(|(id, _)| *id == isr), "{found:?}");
            found.first().map_or(Verdict::Ok, |(_, verdict)| *verdict)
        };
        assert_eq!(judged(3, 1, 2), Verdict::Problem);
        assert_eq!(judged(3, 2, 2), Verdict::Advice, "one is behind");
        assert_eq!(judged(3, 3, 2), Verdict::Ok);
        assert_eq!(judged(3, 3, 3), Verdict::Advice, "none may be down");
        assert_eq!(judged(3, 3, 1), Verdict::Advice, "one acknowledges alone");
        assert_eq!(judged(1, 1, 1), Verdict::Advice, "not replicated");
    }

    #[test]
    fn a_row_that_is_larger_than_its_topic_takes_is_a_problem() {
        let size = CheckId::KafkaTopicSize;
        let takes = |bytes| with_settings(|settings| settings.max_message_bytes = Some(bytes));
        assert!(found(&used(), &takes(1000)).is_empty());
        assert_eq!(found(&used(), &takes(999)), [(size, Verdict::Problem)]);
        let forbidden = TopicAnswers {
            settings: Err(TopicRefusal::Forbidden),
            ..answers()
        };
        assert_eq!(found(&used(), &forbidden), [(size, Verdict::Advice)]);
    }

    #[test]
    fn a_topic_that_takes_only_the_brokers_own_time_is_worth_a_word() {
        let timestamps = CheckId::KafkaTopicTimestamps;
        let ahead = with_settings(|settings| settings.ahead_max_ms = Some(59_999));
        assert_eq!(found(&used(), &ahead), [(timestamps, Verdict::Advice)]);
        let stamped = with_settings(|settings| {
            settings.ahead_max_ms = Some(1);
            settings.stamps_itself = true;
        });
        assert!(found(&used(), &stamped).is_empty());
    }
}

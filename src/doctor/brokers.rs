//! Judges the way to Kafka. Pure.

use std::time::Duration;

use super::check::{CheckId, Diagnosis};
use super::words::count;
use crate::kafka::inspect::{Cause, Security, Unreachable};

/// What is judged whether or not a broker answers.
pub fn settings(security: &Security) -> Vec<Diagnosis> {
    vec![tls(security), auth(security)]
}

pub fn connected(brokers: usize, security: &Security, took: Duration) -> Diagnosis {
    let (brokers, named) = (count(brokers, "broker"), &security.brokers);
    CheckId::KafkaConnect.ok(format!(
        "{brokers} at {named}, the first answers in {} ms",
        took.as_millis()
    ))
}

/// No broker answers: the check that knows the cause says so, and the others of these three are skipped.
pub fn not_connected(unreachable: &Unreachable, security: &Security) -> Vec<Diagnosis> {
    const WHY: &str = "Nothing is published until it can be reached. Rows wait, and no attempt is counted.";
    let found = format!("no broker of {} can be used: {}", security.brokers, unreachable.reason);
    let (culprit, fix) = match unreachable.cause {
        Cause::Network => (
            CheckId::KafkaConnect,
            "Are the brokers up, are these their addresses, and do they speak this security.protocol? A broker also names the \
             address at which it wants to be reached (advertised.listeners).",
        ),
        Cause::Tls => (
            CheckId::KafkaTls,
            "Give the CA of the brokers (ssl.ca.location), use the names that are in their certificates, and renew expired ones. \
             Try: openssl s_client -connect BROKER",
        ),
        Cause::Login => (
            CheckId::KafkaAuth,
            "Correct sasl.mechanism, the login and its password or token, as the brokers' listener has them.",
        ),
    };
    [CheckId::KafkaConnect, CheckId::KafkaTls, CheckId::KafkaAuth]
        .into_iter()
        .map(|check| {
            if check == culprit {
                check.problem(found.clone(), WHY, fix)
            } else {
                check.skipped(format!("no broker answers; see {}", culprit.name()))
            }
        })
        .collect()
}

fn tls(security: &Security) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTls;
    if !security.is_encrypted && security.is_local {
        return CHECK.ok("connections are not encrypted, and do not leave this machine");
    }
    if !security.is_encrypted {
        return CHECK.advice(
            "connections are not encrypted (security.protocol)",
            "Whoever is on the way can read and change messages.",
            "Set --kafka-property security.protocol=sasl_ssl (or ssl), and ssl.ca.location to the brokers' CA.",
        );
    }
    if !security.is_verified {
        return CHECK.advice(
            "connections are encrypted, but the brokers need not prove who they are",
            "Somebody who answers in a broker's place would not be noticed.",
            "Remove enable.ssl.certificate.verification and ssl.endpoint.identification.algorithm from --kafka-property.",
        );
    }
    CHECK.ok("connections are encrypted, and the brokers prove who they are")
}

fn auth(security: &Security) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaAuth;
    let principal = &security.principal;
    let Some(mechanism) = &security.mechanism else {
        return CHECK.ok(if security.is_encrypted && security.has_certificate {
            "the relay shows its certificate, and is that principal to the brokers".to_owned()
        } else {
            format!("the relay does not log in, and is {principal} to the brokers")
        });
    };
    let found = format!("the relay logs in by {mechanism} and is {principal} to the brokers");
    if mechanism.eq_ignore_ascii_case("PLAIN") && !security.is_encrypted && !security.is_local {
        return CHECK.problem(
            format!("{found}; its password travels in plain text"),
            "Whoever is on the way can use the password.",
            "Set --kafka-property security.protocol=sasl_ssl, or use SCRAM-SHA-512.",
        );
    }
    CHECK.ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn security() -> Security {
        Security {
            brokers: "kafka:9092".to_owned(),
            is_local: false,
            is_encrypted: true,
            is_verified: true,
            mechanism: Some("PLAIN".to_owned()),
            login: Some("relay".to_owned()),
            principal: "User:relay".to_owned(),
            has_certificate: false,
        }
    }

    fn verdicts(security: &Security) -> Vec<Verdict> {
        settings(security).iter().map(|diagnosis| diagnosis.verdict).collect()
    }

    #[test]
    fn encryption_and_login_are_judged_by_the_settings() {
        assert_eq!(verdicts(&security()), [Verdict::Ok, Verdict::Ok]);
        let plain = Security {
            is_encrypted: false,
            ..security()
        };
        assert_eq!(verdicts(&plain), [Verdict::Advice, Verdict::Problem]);
        let local = Security {
            is_local: true,
            ..plain.clone()
        };
        assert_eq!(verdicts(&local), [Verdict::Ok, Verdict::Ok]);
        let scram = Security {
            mechanism: Some("SCRAM-SHA-512".to_owned()),
            ..plain
        };
        assert_eq!(verdicts(&scram), [Verdict::Advice, Verdict::Ok]);
        let unverified = Security {
            is_verified: false,
            ..security()
        };
        assert_eq!(verdicts(&unverified), [Verdict::Advice, Verdict::Ok]);
    }

    #[test]
    fn the_check_that_knows_the_cause_names_it_and_the_others_point_to_it() {
        for (cause, culprit) in [
            (Cause::Network, CheckId::KafkaConnect),
            (Cause::Tls, CheckId::KafkaTls),
            (Cause::Login, CheckId::KafkaAuth),
        ] {
            let reason = "nobody is there".to_owned();
            let diagnoses = not_connected(&Unreachable { cause, reason }, &security());
            assert_eq!(diagnoses.len(), 3);
            for diagnosis in diagnoses {
                let is_culprit = diagnosis.id == culprit;
                assert_eq!(diagnosis.verdict == Verdict::Problem, is_culprit, "{diagnosis:?}");
                assert_eq!(diagnosis.found.contains("nobody is there"), is_culprit);
                assert_eq!(diagnosis.found.contains(culprit.name()), !is_culprit);
            }
        }
    }
}

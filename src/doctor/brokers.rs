//! Judges the way to Kafka. Pure.

use std::time::Duration;

use super::check::{CheckId, Diagnosis};
use crate::kafka::inspect::{Cause, Protection, Unreachable};
use crate::words::{age, count};

/// A broker answers, so what is left to judge are the settings.
pub fn connected(brokers: usize, protection: &Protection, took: Duration) -> Vec<Diagnosis> {
    let (brokers, named) = (count(brokers, "broker"), &protection.brokers);
    let found = format!("{brokers} at {named}, the first answers in {} ms", took.as_millis());
    vec![CheckId::KafkaConnect.ok(found), tls(protection), auth(protection)]
}

/// There is no token to log in with.
pub fn no_token(problem: String, protection: &Protection) -> Vec<Diagnosis> {
    let cause = Cause::Login;
    let reason = format!("there is no token: {problem}");
    not_connected(&Unreachable { cause, reason }, protection)
}

/// No broker answers: the check that knows the cause says so, and the others of these three are skipped.
pub fn not_connected(unreachable: &Unreachable, protection: &Protection) -> Vec<Diagnosis> {
    const WHY: &str = "Nothing is published until it can be reached. Rows wait, and no attempt is counted.";
    let found = format!(
        "no broker of {} can be used: {}",
        protection.brokers, unreachable.reason
    );
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

fn tls(protection: &Protection) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaTls;
    if !protection.is_encrypted && protection.is_local {
        return CHECK.ok("connections are not encrypted, and do not leave this machine");
    }
    if !protection.is_encrypted {
        return CHECK.advice(
            "connections are not encrypted (security.protocol)",
            "Anybody on the way can read and change messages.",
            "Set --kafka-property security.protocol=sasl_ssl (or ssl), and ssl.ca.location to the brokers' CA.",
        );
    }
    if !protection.is_verified {
        return CHECK.advice(
            "connections are encrypted, but the brokers need not prove who they are",
            "Somebody who answers in a broker's place would not be noticed.",
            "Remove enable.ssl.certificate.verification and ssl.endpoint.identification.algorithm from --kafka-property.",
        );
    }
    CHECK.ok("connections are encrypted, and the brokers prove who they are")
}

fn auth(protection: &Protection) -> Diagnosis {
    const CHECK: CheckId = CheckId::KafkaAuth;
    let principal = &protection.principal;
    let Some(mechanism) = &protection.mechanism else {
        return CHECK.ok(if protection.has_certificate {
            "the relay shows its certificate, and is that principal to the brokers".to_owned()
        } else {
            format!("the relay does not log in, and is {principal} to the brokers")
        });
    };
    let left = protection.token_left.map(|left| age(left.as_secs_f64()));
    let token = left.map_or(String::new(), |left| format!("; its token is valid for {left}"));
    let found = format!("the relay logs in by {mechanism} and is {principal} to the brokers{token}");
    let is_readable = ["PLAIN", "OAUTHBEARER"]
        .iter()
        .any(|name| mechanism.eq_ignore_ascii_case(name));
    if is_readable && !protection.is_encrypted && !protection.is_local {
        return CHECK.problem(
            format!("{found}; its password or token travels in plain text"),
            "Anybody on the way can use it.",
            "Set --kafka-property security.protocol=sasl_ssl, or use SCRAM-SHA-512.",
        );
    }
    CHECK.ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn protection() -> Protection {
        Protection {
            brokers: "kafka:9092".to_owned(),
            is_local: false,
            is_encrypted: true,
            is_verified: true,
            mechanism: Some("PLAIN".to_owned()),
            has_certificate: false,
            principal: "User:relay".to_owned(),
            token_left: None,
        }
    }

    fn verdicts(protection: &Protection) -> Vec<Verdict> {
        let diagnoses = connected(1, protection, Duration::ZERO);
        diagnoses[1..].iter().map(|diagnosis| diagnosis.verdict).collect()
    }

    #[test]
    fn encryption_and_login_are_judged_by_the_settings() {
        assert_eq!(verdicts(&protection()), [Verdict::Ok, Verdict::Ok]);
        let plain = Protection {
            is_encrypted: false,
            ..protection()
        };
        assert_eq!(verdicts(&plain), [Verdict::Advice, Verdict::Problem]);
        let local = Protection {
            is_local: true,
            ..plain.clone()
        };
        assert_eq!(verdicts(&local), [Verdict::Ok, Verdict::Ok]);
        let scram = Protection {
            mechanism: Some("SCRAM-SHA-512".to_owned()),
            ..plain
        };
        assert_eq!(verdicts(&scram), [Verdict::Advice, Verdict::Ok]);
        let unverified = Protection {
            is_verified: false,
            ..protection()
        };
        assert_eq!(verdicts(&unverified), [Verdict::Advice, Verdict::Ok]);
    }

    #[test]
    fn a_token_is_named_with_its_life() {
        let token = Protection {
            mechanism: Some("OAUTHBEARER".to_owned()),
            token_left: Some(Duration::from_secs(240)),
            ..protection()
        };
        let found = auth(&token).found;
        assert!(
            found.contains("OAUTHBEARER and is User:relay") && found.ends_with("valid for 4m"),
            "{found}"
        );
    }

    #[test]
    fn the_check_that_knows_the_cause_names_it_and_the_others_point_to_it() {
        for (cause, culprit) in [
            (Cause::Network, CheckId::KafkaConnect),
            (Cause::Tls, CheckId::KafkaTls),
            (Cause::Login, CheckId::KafkaAuth),
        ] {
            let reason = "nobody is there".to_owned();
            let diagnoses = not_connected(&Unreachable { cause, reason }, &protection());
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

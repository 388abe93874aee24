//! `outboxd resume`: ends a pause.

use clap::Args;
use serde_json::json;

use super::Failure;
use super::operation::{ConfirmArgs, check_reason, failure};
use super::pause::{Change, Effect, EffectArgs, PENDING_SCAN_MAX, STATEMENT_TIMEOUT, ScopeArgs};
use crate::config::{Check, DatabaseArgs};
use crate::outbox::{Outbox, PauseScope, PauseStatus};
use crate::words::paused;

#[derive(Args, Debug)]
pub struct ResumeArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    scope: ScopeArgs,

    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    confirm: ConfirmArgs,

    #[command(flatten)]
    effect: EffectArgs,
}

/// How many other pauses are looked at.
const PAUSES_MAX: i64 = 10_000;

pub async fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let (database, scope, wait) = Check::run(|check| {
        let database = args.database.database(check);
        let (scope, wait) = (args.scope.scope(check), args.effect.longest_wait(check));
        check_reason(check, args.reason.as_deref().unwrap_or_default());
        Some((database?, scope, wait))
    })?;
    let outbox = Outbox::open(&database, &args.database.schema, STATEMENT_TIMEOUT)
        .await
        .map_err(failure)?;
    let resume = Change {
        command: "resume",
        verb: "Resume",
        scope,
        pending: outbox.pending_rows(scope, PENDING_SCAN_MAX).await.map_err(failure)?,
    };
    if !resume.confirm(args.confirm, args.effect.json)? {
        return Ok(());
    }
    let change = outbox.resume(scope, args.reason.as_deref()).await.map_err(failure)?;
    let effect = Effect::wait(&outbox, change.version, wait).await?;
    let mut others = outbox.list_pauses(PAUSES_MAX).await?;
    others.retain(|other| overlap(scope, other));
    if args.effect.json {
        let mut own = resume.as_json();
        own["changed"] = json!(change.changed);
        own["still_paused"] = json!(others);
        println!("{}", effect.as_json(own));
    } else {
        let what = paused(scope.topic, scope.key);
        let head = match change.changed {
            0 => format!("Not paused: {what}"),
            _ => format!("Resumed {what}"),
        };
        println!("{head}; {}.", effect.summary());
        for other in &others {
            let what = paused(other.topic.as_deref(), other.key.as_deref());
            println!("Still paused: {what} ({:?}, by {:?})", other.reason, other.login);
        }
    }
    effect.require("resume")
}

/// Does the other pause keep back some rows of what was resumed?
fn overlap(scope: PauseScope<'_>, other: &PauseStatus) -> bool {
    let same = |one: Option<&str>, other: &Option<String>| match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    same(scope.topic, &other.topic) && same(scope.key, &other.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_paused_is_named_if_it_keeps_back_rows_of_what_was_resumed() {
        let scope = |topic, key| PauseScope { topic, key };
        let other = |topic: Option<&str>, key: Option<&str>| PauseStatus {
            topic: topic.map(str::to_owned),
            key: key.map(str::to_owned),
            reason: "why".to_owned(),
            login: "alice".to_owned(),
            age_seconds: 1.0,
        };
        let (all, topic, key) = (
            other(None, None),
            other(Some("orders"), None),
            other(Some("orders"), Some("7")),
        );
        for of in [
            scope(None, None),
            scope(Some("orders"), None),
            scope(Some("orders"), Some("7")),
        ] {
            assert!(
                [&all, &topic, &key].into_iter().all(|other| overlap(of, other)),
                "{of:?}"
            );
        }
        assert!(overlap(scope(Some("orders"), Some("8")), &topic));
        assert!(!overlap(scope(Some("orders"), Some("8")), &key));
        assert!(overlap(scope(Some("bills"), None), &all));
        assert!(!overlap(scope(Some("bills"), None), &topic));
        assert!(!overlap(scope(Some("bills"), Some("7")), &key));
    }
}

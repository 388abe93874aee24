//! `outboxd pause`: keeps back a topic, a key of it, or everything, until `outboxd resume`.

mod confirm;
mod effect;
mod scope;

use clap::Args;
use serde_json::json;

use super::Failure;
use super::operation::{ConfirmArgs, check_reason, failure};
use crate::config::{Check, DatabaseArgs};
use crate::outbox::Outbox;
use crate::words::paused;

pub use confirm::Change;
pub use effect::{Effect, EffectArgs, STATEMENT_TIMEOUT};
pub use scope::ScopeArgs;

#[derive(Args, Debug)]
pub struct PauseArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    scope: ScopeArgs,

    /// Why, for `outboxd status` and the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    confirm: ConfirmArgs,

    #[command(flatten)]
    effect: EffectArgs,
}

/// So many rows are read at most to count those that wait.
pub const PENDING_SCAN_MAX: i64 = 100_000;

pub async fn pause(args: &PauseArgs) -> Result<(), Failure> {
    let (database, scope, wait) = Check::run(|check| {
        let database = args.database.database(check);
        let (scope, wait) = (args.scope.scope(check), args.effect.longest_wait(check));
        check.ensure(
            !args.reason.trim().is_empty(),
            "--reason is empty: say why, for those who find it paused",
        );
        check_reason(check, &args.reason);
        Some((database?, scope, wait))
    })?;
    let outbox = Outbox::open(&database, &args.database.schema, STATEMENT_TIMEOUT)
        .await
        .map_err(failure)?;
    let pause = Change {
        command: "pause",
        verb: "Pause",
        scope,
        pending: outbox.pending_rows(scope, PENDING_SCAN_MAX).await.map_err(failure)?,
    };
    if !pause.confirm(args.confirm, args.effect.json)? {
        return Ok(());
    }
    let change = outbox.pause(scope, &args.reason).await.map_err(failure)?;
    let effect = Effect::wait(&outbox, change.version, wait).await?;
    if args.effect.json {
        let mut own = pause.as_json();
        own["changed"] = json!(change.changed);
        println!("{}", effect.as_json(own));
    } else {
        let what = paused(scope.topic, scope.key);
        let head = match change.changed {
            0 => format!("Paused already: {what}"),
            _ => format!("Paused {what}"),
        };
        println!("{head}; {}.", effect.summary());
    }
    effect.require("pause")
}

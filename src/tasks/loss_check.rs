//! Asks the server after a crash or a failover which published rows it has lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;
use tracing::{error, warn};

use super::Shutdown;
use crate::failpoint;
use crate::jitter::jittered;
use crate::lanes::{RecentlyPublished, Sent};
use crate::metrics;
use crate::outbox::{Outbox, Result};

/// Wait before a failed question is asked again. It doubles each time, up to the maximum.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(30);
/// A later answer could mistake rows that retention has removed for lost ones. Retention keeps rows for at least an hour.
const ANSWER_WITHIN: Duration = Duration::from_secs(3000);

/// How many lost rows are logged by their ids.
const LOGGED_IDS_MAX: usize = 10;

/// Repeats each question until it is answered, and reports lost rows. It is a task of its own, so that the lease task never waits
/// for it.
pub struct LossCheck {
    pub questions: UnboundedReceiver<VecDeque<Sent>>,
    pub outbox: Arc<Outbox>,
}

impl LossCheck {
    /// Runs until `shutdown.draining`.
    pub async fn run(&mut self, shutdown: &Shutdown) {
        let draining = &shutdown.draining;
        loop {
            let Some(Some(question)) = draining.run_until_cancelled(self.questions.recv()).await else {
                return;
            };
            let answered = draining.run_until_cancelled(self.ask_until_answered(question));
            if answered.await.is_none() {
                error!(
                    "stopped before the server has said whether it has lost published rows: compare with `outboxd verify`"
                );
                return;
            }
        }
    }

    async fn ask_until_answered(&mut self, mut question: VecDeque<Sent>) {
        let (began, mut wait) = (Instant::now(), ASK_AGAIN);
        loop {
            failpoint::hit("before_loss_check").await;
            // What has come into question since is asked for, too.
            while let Ok(more) = self.questions.try_recv() {
                RecentlyPublished::append(&mut question, more);
            }
            let Err(error) = ask(&self.outbox, &question).await else {
                return;
            };
            metrics::database_error();
            if began.elapsed() > ANSWER_WITHIN {
                error!(%error, "the server does not say whether it has lost published rows: compare with `outboxd verify`");
                return;
            }
            warn!(%error, "cannot ask the server whether it has lost published rows; asking again");
            sleep(jittered(wait)).await;
            wait = (wait * 2).min(ASK_AGAIN_MAX);
        }
    }
}

/// Asks which of these rows the server has lost, and reports them.
async fn ask(outbox: &Outbox, question: &VecDeque<Sent>) -> Result<()> {
    if question.is_empty() {
        return Ok(());
    }
    let (ids, message_ids) = question.iter().map(|sent| (sent.id, sent.message_id)).unzip();
    let lost = outbox.lost_rows(ids, message_ids).await?;
    if !lost.is_empty() {
        metrics::published_rows_lost(lost.len());
        error!(
            rows = lost.len(),
            first_ids = ?&lost[..lost.len().min(LOGGED_IDS_MAX)],
            "the server has lost rows that are already in Kafka: `outboxd verify` compares, docs/operations.md says what to do"
        );
    }
    Ok(())
}

//! Asks the server, after it has crashed or failed over, which published rows it has lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{error, warn};

use super::Shutdown;
use crate::failpoint;
use crate::jitter::jittered;
use crate::lanes::{RecentlyPublished, Sent};
use crate::metrics;
use crate::outbox::Outbox;

/// The server is asked again after this long, and after twice as long each time up to the maximum.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(30);
/// An answer that comes later could mistake retention, which is an hour at least, for loss.
const ANSWER_WITHIN: Duration = Duration::from_secs(3000);

/// The log names this many lost rows.
const LOST_NAMED: usize = 10;

/// Asks for what is in question until it is answered, and reports what is lost. It is apart from the lease: neither waits for the other.
pub struct LossCheck {
    pub published: Arc<RecentlyPublished>,
    pub outbox: Arc<Outbox>,
}

impl LossCheck {
    /// Runs until `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        let draining = &shutdown.draining;
        loop {
            tokio::select! {
                () = self.published.questioned() => {}
                () = draining.cancelled() => return,
            }
            tokio::select! {
                () = self.until_answered() => {}
                () = draining.cancelled() => {
                    error!("stopped before the server has said whether it has lost published rows: compare with `outboxd verify`");
                    return;
                }
            }
        }
    }

    async fn until_answered(&self) {
        let (began, mut again) = (Instant::now(), ASK_AGAIN);
        loop {
            failpoint::hit("before_loss_check").await;
            let question = self.published.take_question();
            let Err(error) = ask(&self.outbox, &question).await else {
                return;
            };
            metrics::database_error();
            if began.elapsed() > ANSWER_WITHIN {
                error!(%error, "the server does not say whether it has lost published rows: compare with `outboxd verify`");
                return;
            }
            warn!(%error, "cannot ask the server whether it has lost published rows; asking again");
            self.published.put_back(question);
            sleep(jittered(again)).await;
            again = (again * 2).min(ASK_AGAIN_MAX);
        }
    }
}

/// Which of these has the server lost?
async fn ask(outbox: &Outbox, question: &VecDeque<Sent>) -> crate::outbox::Result<()> {
    if question.is_empty() {
        return Ok(());
    }
    let (ids, message_ids) = question.iter().map(|sent| (sent.id, sent.message_id)).unzip();
    let lost = outbox.lost_rows(ids, message_ids).await?;
    if !lost.is_empty() {
        metrics::published_rows_lost(lost.len());
        error!(
            rows = lost.len(),
            first_ids = ?&lost[..lost.len().min(LOST_NAMED)],
            "the server has lost rows that are already in Kafka: `outboxd verify` compares, docs/operations.md says what to do"
        );
    }
    Ok(())
}

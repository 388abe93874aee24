//! Reads the pauses when they have changed, and reports which of them are in effect in this process. Both go with the renewals of
//! the lease, so they cost no statement while nothing changes.

use tracing::{info, warn};

use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{Outbox, Result};

pub(super) struct PauseReports<'a> {
    lanes: &'a Lanes,
    outbox: &'a Outbox,
    /// The version that the database knows to be in effect here.
    reported: i64,
    /// The version for which the lease was last renewed early.
    hurried: i64,
}

/// Reads the pauses and obeys them from now on.
pub(super) async fn read_pauses(lanes: &Lanes, outbox: &Outbox) -> Result<()> {
    obey(lanes, outbox.read_pauses().await?);
    Ok(())
}

fn obey(lanes: &Lanes, pauses: Pauses) {
    let (count, before) = (pauses.count(), lanes.pauses.current().count());
    if (count, before) != (0, 0) {
        info!(
            pauses = count,
            before,
            everything = pauses.cover_everything(),
            "an operator has paused or resumed something: `outboxd status` shows what is paused, and why"
        );
    }
    metrics::pauses(count);
    lanes.pauses.replace(pauses);
}

impl<'a> PauseReports<'a> {
    pub(super) fn new(lanes: &'a Lanes, outbox: &'a Outbox) -> Self {
        // What a worker that has just registered has seen.
        let (reported, hurried) = (0, 0);
        PauseReports {
            lanes,
            outbox,
            reported,
            hurried,
        }
    }

    /// The version to report with the next renewal.
    pub(super) fn in_effect(&self) -> i64 {
        self.lanes.pauses.in_effect()
    }

    /// Is something still being sent that obeys older pauses, or is it to be reported that this has ended?
    pub(super) fn are_unreported(&self) -> bool {
        let version = self.lanes.pauses.version();
        self.reported != version && self.hurried != version
    }

    /// Is the lease to be renewed now, to report that the current pauses are in effect? This happens once for each version, so an
    /// error of the database does not make it a busy loop.
    pub(super) fn hurry(&mut self) -> bool {
        let version = self.lanes.pauses.version();
        let is_due = self.are_unreported() && self.in_effect() == version;
        if is_due {
            self.hurried = version;
        }
        is_due
    }

    /// The lease was renewed: `reported` is stored, and `stored` is the version of the stored pauses.
    pub(super) async fn renewed(&mut self, term: &Term, reported: i64, stored: i64) {
        self.reported = reported;
        if stored == self.lanes.pauses.version() {
            return;
        }
        match self.read(term).await {
            Ok(()) => {}
            Err(error) => {
                metrics::database_error();
                warn!(%error, "cannot read what is paused; trying again with the next renewal");
            }
        }
    }

    async fn read(&self, term: &Term) -> Result<()> {
        read_pauses(self.lanes, self.outbox).await?;
        // The unordered rows of what was resumed may be held by a worker that is gone, and then this one has to release them.
        if let Some(stored) = self.outbox.read_unordered(term.incarnation).await? {
            self.lanes.unordered().note_stored(term.worker, stored);
        }
        Ok(())
    }
}

//! A look at everything that seems to have nothing, and the way of what it finds.

use std::time::Instant;

use tracing::warn;

use super::batch::{discarded, nothing_there, with_rows};
use super::{Relay, before_claim};
use crate::domain::watermark::Settled;
use crate::lanes::{Held, Lookout, Term};
use crate::metrics;
use crate::outbox::{Claim, Found, Result};
use crate::tasks::relay::poll_schedule::{Look, Turn};

/// The most rows a look walks before it says that it does not know.
const WALK_MOST: usize = 1000;

/// What a look found, and the lanes that have it: still checked out.
struct Sighted {
    term: Term,
    settled: Settled,
    lanes: Vec<Held>,
    claim: Claim,
}

impl Relay {
    /// Asks for what lanes without a known backlog have, and relays it: a claim of them all in one walk along the ids.
    pub(super) async fn look(&self, turn: Turn<'_>) {
        let began = Instant::now();
        let Some(sighted) = self.sighted(turn).await else {
            return;
        };
        let Sighted {
            term,
            settled,
            lanes,
            claim,
        } = sighted;
        let seen = self.relay_claim(&term, settled, &lanes, claim, began).await;
        self.lanes.checkin(&term, seen);
    }

    /// Takes a look. `None`: nothing is to be relayed, and nothing is checked out any more.
    async fn sighted(&self, turn: Turn<'_>) -> Option<Sighted> {
        let Some(lookout) = self.lanes.checkout_idle(&self.appetite()) else {
            turn.over(self.look_without_lanes());
            return None;
        };
        let found = match self.found(&lookout).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.lanes.put_back(&lookout.term, &lookout.lanes);
                turn.over(Look::Something);
                return None;
            }
            Err(error) => {
                metrics::database_error();
                if turn.is_first_failure() {
                    warn!(%error, "cannot look for rows; trying again");
                }
                self.lanes.put_back(&lookout.term, &lookout.lanes);
                turn.over(Look::Failed);
                return None;
            }
        };
        if found.keyless || found.cut {
            self.lanes.try_keyless();
        }
        if found.cut {
            self.lanes.want_horizon();
            let seen = lookout.lanes.iter().map(|held| discarded(held.lane)).collect();
            self.lanes.checkin(&lookout.term, seen);
            turn.over(Look::Blind);
            return None;
        }
        self.lanes.looked(&lookout, &found.overview);
        let settled = lookout.settled;
        let is_empty = found.claim.is_empty();
        turn.over(if is_empty && !found.keyless {
            Look::Nothing
        } else {
            Look::Something
        });
        let (lanes, empty) = with_rows(lookout.lanes, &found.claim);
        let seen = empty.iter().map(|lane| nothing_there(*lane, settled)).collect();
        if is_empty {
            self.lanes.checkin(&lookout.term, seen);
            return None;
        }
        self.lanes.checkin_some(&lookout.term, seen);
        Some(Sighted {
            term: lookout.term,
            settled,
            lanes,
            claim: found.claim,
        })
    }

    /// Every lane of ours is known to be ready or is at work. Rows without a lane have an index of their own: a claim tells.
    fn look_without_lanes(&self) -> Look {
        self.lanes.try_keyless();
        if self.lanes.owned() > 0 {
            Look::Blind
        } else {
            Look::Nothing
        }
    }

    /// `None`: as in [`Relay::claim_lanes`].
    async fn found(&self, lookout: &Lookout) -> Result<Option<Found>> {
        before_claim(lookout.lanes.iter().any(|held| lookout.start > held.floor)).await;
        let found = self.outbox.look(lookout, WALK_MOST, self.pace.bytes()).await?;
        let proven = self.is_proven(&lookout.term, &lookout.holders).await?;
        Ok(proven.then_some(found))
    }
}

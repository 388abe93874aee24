//! A look at everything that seems to have nothing, and the way of what it finds.

use std::time::Instant;

use tracing::warn;

use super::batch::{discarded, nothing_there, with_rows};
use super::{Relay, before_claim};
use crate::lanes::Lookout;
use crate::metrics;
use crate::outbox::{Found, Result};
use crate::wakeup::{Look, Turn};

/// The most rows a look walks before it says that it does not know.
const WALK_MOST: usize = 1000;

impl Relay {
    /// Asks for what lanes without a known backlog have, and relays it: a claim of them all in one walk along the ids.
    pub(super) async fn look(&self, turn: Turn<'_>) {
        let Some(lookout) = self.lanes.checkout_idle(&self.appetite()) else {
            return turn.over(self.look_without_lanes());
        };
        let began = Instant::now();
        let found = match self.found(&lookout).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.lanes.put_back(&lookout.term, &lookout.lanes);
                return turn.over(Look::Something);
            }
            Err(error) => {
                metrics::database_error();
                if turn.is_first_failure() {
                    warn!(%error, "cannot look for rows; trying again");
                }
                self.lanes.put_back(&lookout.term, &lookout.lanes);
                return turn.over(Look::Failed);
            }
        };
        if found.keyless || found.cut {
            self.lanes.try_keyless();
        }
        if found.cut {
            self.lanes.want_horizon();
            let seen = lookout.lanes.iter().map(|held| discarded(held.lane)).collect();
            self.lanes.checkin(&lookout.term, seen);
            return turn.over(Look::Blind);
        }
        let settled = self.lanes.looked(&lookout, &found.overview);
        let is_empty = found.claim.is_empty();
        turn.over(if is_empty && !found.keyless {
            Look::Nothing
        } else {
            Look::Something
        });
        let (lanes, empty) = with_rows(lookout.lanes, &found.claim);
        let seen = empty.iter().map(|lane| nothing_there(*lane, settled)).collect();
        if is_empty {
            return self.lanes.checkin(&lookout.term, seen);
        }
        self.lanes.checkin_some(&lookout.term, seen);
        let seen = self
            .relay_claim(&lookout.term, settled, &lanes, found.claim, began)
            .await;
        self.lanes.checkin(&lookout.term, seen);
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
        let proven = self.is_proven(&lookout.term, lookout.settled, &lookout.holders).await?;
        Ok(proven.then_some(found))
    }
}

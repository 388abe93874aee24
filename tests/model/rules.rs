//! The rules the protocol consists of. Each can be switched off, and then some promise must break: see `main`.

/// One rule. The doc comment says what the protocol does; without it, it does the obvious simpler thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    // The lease of lanes.
    /// A take locks the expired worker's row, and so sees a renewal that has just committed.
    TakeLocksTheWorker,
    /// A take stamps the expired worker stopped: a renewal that waited for the lock reads the row again.
    TakeStampsTheWorker,
    /// A renewal touches only a row that is neither expired nor stamped.
    RenewalRevivesNobody,
    /// What is left of a lease is counted from before the call that took or renewed it.
    LeaseCountsFromTheCall,
    /// An answer to a renewal that comes after the lease has ended is not ownership.
    LateAnswerIsNoOwnership,
    /// Nothing is sent unless the lease outlasts the send and what the clocks may differ by.
    SendsStopBeforeTheEnd,
    /// A mark locks its lane; otherwise it reads who owns it and commits later.
    MarkLocksTheLane,
    /// A mark matches the lane's epoch and not only its owner.
    MarkChecksTheEpoch,
    /// A lane with sends in flight is not handed over.
    BusyLaneStays,
    /// What was acknowledged is marked before the lane is handed over.
    MarkComesBeforeLeaving,
    /// Who leaves is stamped stopped in the transaction that frees its lanes.
    LeavingStamps,
    /// What is about to be sent is written down before it is, and the next owner of the lane counts that as maybe sent.
    SendsAreRecorded,
    /// What Kafka gave no answer for is written down as maybe sent when the record of its batch goes.
    UnknownStaysMaybeSent,

    // Floors and holds.
    /// An id is settled when those who held the writers' lock have ended; otherwise, when a claim has seen it.
    FloorWaitsForWriters,
    /// The writers are those who hold the lock; otherwise, those who have a transaction id.
    WritersAreLockHolders,
    /// The highest id is read before the writers are.
    HighestIdFirst,
    /// A floor moves by what was settled before the claim; otherwise, by what is settled when it is checked in.
    SettledBeforeTheClaim,
    /// A claim from the soft floor counts only if none of those it rests on had ended.
    SoftClaimsAreProven,
    /// Soft floors fall when a holder ends.
    SoftFloorsFall,
    /// A floor stays below what was seen and is neither published nor held.
    FloorStaysBelowTheLeft,
    /// A hold is written with the marks of its batch, before the floor passes its rows.
    HoldComesBeforeTheFloor,
    /// A hold remembers the floor of its claim; otherwise, its head.
    HoldRemembersTheFloor,
    /// Claims leave out what is held.
    ClaimsLeaveOutTheHeld,
    /// Behind a refused row nothing of its key is sent.
    NothingOvertakesTheRefused,
    /// Releasing a hold and lowering the stored floor are one transaction.
    ReleaseLowersTheStoredFloor,
    /// A release raises the lane's epoch: a floor from before it is not stored any more.
    ReleaseRaisesTheEpoch,
    /// Floors of one incarnation of the server are not used against another.
    FloorsEndWithTheServer,

    // Unordered rows.
    /// A mark carries the token of its very claim.
    MarkCarriesTheToken,
    /// The floor comes from a poll of the table; otherwise, from a worker's own claims.
    FloorComesFromAPoll,
    /// Releasing a parked topic raises the epoch, which guards the floor others store.
    LoweringRaisesTheEpoch,
    /// Who sees another epoch reads the stored floor again.
    AnotherEpochIsReadAgain,
}

/// The rules in force: all, or all but some.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    off: Vec<Rule>,
}

impl Rules {
    pub fn all() -> Self {
        Self::default()
    }

    pub fn without(off: &[Rule]) -> Self {
        Self { off: off.to_vec() }
    }

    pub fn has(&self, rule: Rule) -> bool {
        !self.off.contains(&rule)
    }
}

//! The rules the protocol consists of. Each can be switched off, and then a promise must break: see `main`.

/// One rule. The doc comment says what the protocol does; without it, it does the obvious simpler thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    // The lease of lanes.
    /// A take locks the expired worker's row, and so reads a renewal that has just committed.
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
    /// A worker that leaves is stamped stopped in the transaction that frees its lanes.
    LeavingStamps,
    /// An in-flight entry is written before anything is sent, and the next owner of the lane counts its rows as maybe sent.
    SendsAreRecorded,
    /// Rows that Kafka gave no answer for are stored as maybe sent when the in-flight entry of their batch is deleted.
    UnknownStaysMaybeSent,

    // Floors and holds.
    /// The watermark passes an id when every writer that was open at its drawing has ended; otherwise, when a claim has read it.
    FloorWaitsForWriters,
    /// Open writers are the sessions that hold the table lock; otherwise, those that have a transaction id.
    WritersAreLockHolders,
    /// The highest id is read before the writers are.
    HighestIdFirst,
    /// A floor moves up to the watermark as it was before the claim; otherwise, as it is when the lane is checked in.
    WatermarkBeforeTheClaim,
    /// A claim from the soft floor counts only if none of the writers it bypasses had ended.
    SoftClaimsAreProven,
    /// Soft floors fall when an open writer ends.
    SoftFloorsFall,
    /// A floor stays below a row that was claimed and is neither published nor held.
    FloorStaysBelowTheLeft,
    /// A hold is written with the marks of its batch, before the floor passes its rows.
    HoldComesBeforeTheFloor,
    /// A hold remembers the floor of its claim; otherwise, its head.
    HoldRemembersTheFloor,
    /// Claims leave out rows that are held.
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
    /// A worker that reads another epoch reads the stored floor again.
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

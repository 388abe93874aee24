//! A primary and its standby: the standby falls behind, the primary dies, the standby takes its place.

use crate::servers::{OwnPostgres, address_of};
use crate::{SOON, connect, eventually};

pub struct PrimaryStandby {
    primary: OwnPostgres,
    standby: OwnPostgres,
}

impl PrimaryStandby {
    pub fn start() -> Self {
        let primary = OwnPostgres::start();
        let standby = primary.standby();
        PrimaryStandby { primary, standby }
    }

    /// Whichever of the two takes writes.
    pub fn url(&self) -> String {
        let primary = address_of(&self.primary.url);
        let both = format!("{primary},{}", address_of(&self.standby.url));
        let url = self.primary.url.replacen(primary, &both, 1);
        format!("{url}?target_session_attrs=read-write")
    }

    /// From now on the standby learns of nothing; what was written before it has.
    pub async fn cut(&self) {
        let (primary, standby) = (connect(&self.primary.url).await, connect(&self.standby.url).await);
        let row = primary.query_one("SELECT pg_current_wal_lsn()::text", &[]).await;
        let written: String = row.expect("a position").get(0);
        eventually(SOON, "the standby to have everything", async || {
            let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
            let row = standby.query_one(&replayed, &[]).await.expect("an answer");
            row.get::<_, bool>(0).then_some(())
        })
        .await;
        for change in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
            standby.batch_execute(change).await.expect(change);
        }
        eventually(SOON, "the standby to be cut off", async || {
            let receivers = "SELECT count(*) FROM pg_stat_replication";
            let row = primary.query_one(receivers, &[]).await.expect("an answer");
            (row.get::<_, i64>(0) == 0).then_some(())
        })
        .await;
    }

    /// The primary dies, the standby takes its place.
    pub async fn fail_over(&self) {
        self.primary.crash();
        let standby = connect(&self.standby.url).await;
        let promoted = standby.query_one("SELECT pg_promote()", &[]).await.expect("an answer");
        assert!(promoted.get::<_, bool>(0), "the standby is promoted");
    }
}

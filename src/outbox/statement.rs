//! The text of every statement that the daemon runs: one `.sql` file each, compiled in and adapted to the settings.

macro_rules! statements {
    ($($subject:ident: [$($name:ident),* $(,)?],)*) => {
        /// The text of every statement, for the configured schema and the largest message we take.
        pub(super) struct Statements { $($(pub(super) $name: String),*),* }

        impl Statements {
            pub(super) fn new(schema: &str, message_bytes_max: usize) -> Self {
                let text = |sql: &str| in_schema(&with_bound(sql, message_bytes_max), schema);
                Self { $($($name: text(file!($subject $name))),*),* }
            }
        }

        /// The text of one statement with the default settings, by its name. For tests and benches, which run statements by
        /// themselves. Panics if there is no statement of this name.
        pub fn text(name: &str) -> String {
            match name {
                $($(stringify!($name) => file!($subject $name).to_owned(),)*)*
                _ => panic!("no statement is named {name}"),
            }
        }
    };
}

/// The file of a statement, in the folder of its subject.
macro_rules! file {
    ($subject:ident $name:ident) => {
        include_str!(concat!(stringify!($subject), "/", stringify!($name), ".sql"))
    };
}

statements! {
    claim: [claim_lanes, claim_unordered, lock_unordered_claims, locked_rows, poll, read_claim, why_unreadable],
    mark: [count_refusals, count_refusals_unordered, fence_claim, fence_lanes, insert_in_flight, mark_lanes_archive, mark_lanes_delete, mark_lanes_keep, mark_unordered_archive, mark_unordered_delete, mark_unordered_keep, read_in_flight, renew_claim, return_maybe_sent, return_maybe_sent_as_new, store_maybe_sent],
    hold: [delete_holds, due_keys, due_probes, held_topics, holds_of_units, insert_holds, lock_unordered_holds, lower_floor, lower_resume_floors, lower_unordered_floor, postpone_keys, postpone_unit, read_head, read_topic_head, reserve_unordered_probes],
    lease: [lineage, predecessors, read_taken_lanes, register, renew, return_lanes, stop_predecessor, stop_worker, stop_worker_in_flight, store_floors, take_lanes],
    watermark: [ended_writers, highest_id, lowest_unordered, open_writers, read_unordered, rebuild_floors, store_unordered_floor, writer_identity],
    maintenance: [delete_stale_claims, delete_stale_in_flight, delete_stale_workers, end_orphaned, history_expire, history_prepare, lost_deleted, lost_kept, purge_idempotency, purge_inbox, purge_messages, purge_processed, purgeable, rescan],
    status: [sample_backlog, sample_commands, sample_counters, sample_duplicates, sample_inbox, status_dead, status_free_lanes, status_holds, status_open_writer, status_workers],
    schema: [applied_version, compatibility, permissions, schema_present, sequence_cache, timeline],
}

/// The files are written for the schema `outbox`; another name is put in its place. Names are checked at start-up
/// to be plain identifiers, so no quoting is needed.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "outbox" {
        return sql.to_owned();
    }
    sql.replace("outbox.", &format!("{schema}."))
        .replace("SCHEMA outbox", &format!("SCHEMA {schema}"))
}

/// The largest message the files take.
pub const MESSAGE_BYTES_MAX: usize = 6 << 20;

/// The files are written for messages of at most [`MESSAGE_BYTES_MAX`]; another bound is put in its place.
fn with_bound(sql: &str, message_bytes_max: usize) -> String {
    sql.replace(&MESSAGE_BYTES_MAX.to_string(), &message_bytes_max.to_string())
}

//! The text of every statement that the daemon runs. Each is a `.sql` file, compiled in and adapted to the settings.

macro_rules! statements {
    ($($subject:ident: [$($name:ident),* $(,)?],)*) => {
        /// The text of every statement, for the configured schema and the largest message that is read.
        pub(super) struct Statements { $($(pub(super) $name: String),*),* }

        impl Statements {
            pub(super) fn new(schema: &str, message_bytes_max: usize) -> Self {
                Self { $($($name: adapted(file!($subject $name), schema, message_bytes_max)),*),* }
            }
        }

        /// The text of a statement with the default settings, for tests and benches that run it by itself. Panics if no
        /// statement has this name.
        pub fn text(name: &str) -> String {
            match name {
                $($(stringify!($name) => with_fragments(file!($subject $name)),)*)*
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
    claim: [claim_lanes, claim_unordered, lock_unordered_claims, poll, read_claim, why_unreadable],
    mark: [count_refusals, fence_claim, fence_lanes, insert_in_flight, locked_rows, mark_lanes_archive, mark_lanes_delete, mark_lanes_keep, mark_unordered_archive, mark_unordered_delete, mark_unordered_keep, renew_claim, return_maybe_sent, return_maybe_sent_as_new, store_maybe_sent],
    hold: [delete_holds, due_keys, due_probes, held_topics, holds_of_units, insert_holds, lock_unordered_holds, lower_floor, lower_resume_floors, lower_unordered_floor, postpone_keys, postpone_unit, read_head, read_topic_head, reserve_unordered_probes],
    lease: [lineage, predecessors, read_in_flight, read_taken_lanes, register, renew, return_lanes, stop_predecessor, stop_worker, stop_worker_in_flight, take_lanes],
    watermark: [ended_writers, highest_id, lowest_unordered, open_writers, read_unordered, rebuild_floors, store_floors, store_unordered_floor, writer_identity],
    maintenance: [delete_stale_claims, delete_stale_in_flight, delete_stale_workers, end_orphaned, history_expire, history_prepare, lost_deleted, lost_kept, purge_idempotency, purge_inbox, purge_messages, purge_processed, purgeable, rescan],
    doctor: [autovacuum, connections, durability, history_days, idle_sessions, login, old_snapshots, operator_login, prepared_transactions, sequence, server, server_time, session_tls, slots, triggers, used_topics],
    pause: [list_pauses, pause, pending_rows, read_pauses, resume, workers_and_pauses],
    status: [activity, sample_backlog, sample_commands, sample_counters, sample_finished, sample_inbox, status_dead, status_free_lanes, status_open_writer, status_workers],
    operator: [audit_operations, audit_transactions, dead_correct, dead_discard, dead_ids, dead_list, dead_redrive, dead_show, hold_list, holds_release],
    replay: [due_rows, replay_begin, replay_left, replay_preview, replay_step, replay_unfinished],
    schema: [applied_version, compatibility, permissions, schema_present, sequence_cache, timeline],
}

macro_rules! fragments {
    ($($name:ident),* $(,)?) => {
        /// Text that several statements share. `{name}` in a statement stands for the file of that name.
        const FRAGMENTS: &[(&str, &str)] = &[$((concat!("{", stringify!($name), "}"), file!(fragment $name))),*];
    };
}

fragments!(
    archived_columns,
    claimable_unordered,
    dead_filter,
    has_session,
    is_pending,
    lane_fence,
    message_columns,
    message_length,
    not_paused,
    pending_ranges
);

/// A statement for this schema and for messages of at most this many bytes.
pub(super) fn adapted(sql: &str, schema: &str, message_bytes_max: usize) -> String {
    let sql = with_fragments(sql).replace(&MESSAGE_BYTES_MAX.to_string(), &message_bytes_max.to_string());
    in_schema(&sql, schema)
}

fn with_fragments(sql: &str) -> String {
    FRAGMENTS
        .iter()
        .fold(sql.to_owned(), |sql, (name, text)| sql.replace(name, text.trim_end()))
}

/// Replaces the schema `outbox`, for which the files are written. Schema names are checked at start-up to be plain identifiers,
/// so no quoting is needed.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "outbox" {
        return sql.to_owned();
    }
    sql.replace("outbox.", &format!("{schema}."))
        .replace("SCHEMA outbox", &format!("SCHEMA {schema}"))
}

/// The limit of a message's size, in bytes, for which the files are written.
pub const MESSAGE_BYTES_MAX: usize = 6 << 20;

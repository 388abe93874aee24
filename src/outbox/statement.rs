//! The text of every statement that the daemon runs: one `.sql` file each, compiled in and adapted to the settings.

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// The text of every statement, for the configured schema and the largest message we take.
        pub(super) struct Statements { $(pub(super) $name: String),* }

        impl Statements {
            pub(super) fn new(schema: &str, message_bytes_max: usize) -> Self {
                let text = |sql: &str| in_schema(&with_bound(sql, message_bytes_max), schema);
                Self { $($name: text(include_str!(concat!(stringify!($name), ".sql")))),* }
            }
        }

        /// The text of one statement with the default settings, by its name. For tests and benches, which run statements by
        /// themselves. Panics if there is no statement of this name.
        pub fn text(name: &str) -> String {
            match name {
                $(stringify!($name) => include_str!(concat!(stringify!($name), ".sql")).to_owned(),)*
                _ => panic!("no statement is named {name}"),
            }
        }
    };
}

statements!(
    claim_fence,
    claim_kept,
    claim_keyless,
    claim_lanes,
    claim_turn,
    claimed,
    compatibility,
    end_orphaned,
    fence,
    forget_claims,
    forget_records,
    forget_workers,
    give_up,
    held_topics,
    history_expire,
    history_prepare,
    hold,
    hold_head,
    hold_resume,
    holder,
    holders_ended,
    holds,
    holds_keyless,
    horizon,
    inherit,
    keyless,
    keyless_lowest,
    lineage,
    locked,
    look,
    lost_deleted,
    lost_kept,
    lower_floor,
    lower_floor_keyless,
    mark_keyless_archive,
    mark_keyless_delete,
    mark_keyless_keep,
    mark_lanes_archive,
    mark_lanes_delete,
    mark_lanes_keep,
    paused,
    paused_as,
    permissions,
    postpone,
    postpone_paused,
    predecessors,
    purge,
    purge_idempotency,
    purge_inbox,
    purge_processed,
    purgeable,
    rebuild_floors,
    record,
    recorded,
    refuse,
    refuse_keyless,
    register,
    release_keyless,
    renew,
    rescan,
    sample,
    sample_commands,
    sample_counted,
    sample_duplicates,
    sample_inbox,
    schema_history,
    schema_version,
    sequence_cache,
    status_dead,
    status_free_lanes,
    status_holds,
    status_workers,
    status_writer,
    stop_predecessor,
    stop_recorded,
    stop_worker,
    store_floor_keyless,
    store_floors,
    store_suspects,
    suspect,
    suspect_in_turn,
    take,
    timeline,
    topic_head,
    unhold,
    withheld,
    writers,
);

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

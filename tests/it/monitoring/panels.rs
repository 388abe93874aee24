//! The panels of the dashboard, row by row. `{$outbox}` in an expression restricts it to the outbox that is chosen above the panels.

pub struct Row {
    pub title: &'static str,
    pub panels: &'static [Panel],
}

pub struct Panel {
    pub title: &'static str,
    pub unit: Unit,
    /// Expressions, each with its legend.
    pub queries: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy)]
pub enum Unit {
    Count,
    PerSecond,
    Seconds,
    Bytes,
    Ratio,
}

const fn panel(title: &'static str, unit: Unit, queries: &'static [(&'static str, &'static str)]) -> Panel {
    Panel { title, unit, queries }
}

use Unit::{Bytes, Count, PerSecond, Ratio, Seconds};

pub const ROWS: &[Row] = &[
    Row {
        title: "Backlog",
        panels: &[
            panel(
                "Alerts that fire",
                Count,
                &[(
                    "max by (alertname, topic) (ALERTS{alertstate=\"firing\",alertname=~\"Outboxd.*\",$outbox})",
                    "{{alertname}} {{topic}}",
                )],
            ),
            panel(
                "Pending rows",
                Count,
                &[("max by (topic) (outboxd_backlog_rows{$outbox})", "{{topic}}")],
            ),
            panel(
                "How long publishing the backlog takes",
                Seconds,
                &[(
                    "sum(max by (topic) (outboxd_backlog_rows{$outbox})) / sum(rate(outboxd_rows_published_total{$outbox}[$__rate_interval]))",
                    "at the present rate",
                )],
            ),
            panel(
                "Age of the oldest pending row",
                Seconds,
                &[("max by (topic) (outboxd_oldest_pending_seconds{$outbox})", "{{topic}}")],
            ),
            panel(
                "Age of the oldest row that nothing keeps back",
                Seconds,
                &[("max by (topic) (outboxd_oldest_unheld_seconds{$outbox})", "{{topic}}")],
            ),
            panel(
                "Delayed rows",
                Count,
                &[
                    ("max(outboxd_delayed_rows{$outbox})", "delayed"),
                    ("max(outboxd_backlog_estimated{$outbox})", "1: the backlog is estimated"),
                ],
            ),
        ],
    },
    Row {
        title: "Rate and latency",
        panels: &[
            panel(
                "Rows published",
                PerSecond,
                &[(
                    "sum by (topic) (rate(outboxd_rows_published_total{$outbox}[$__rate_interval]))",
                    "{{topic}}",
                )],
            ),
            panel(
                "From INSERT to mark, 99th percentile",
                Seconds,
                &[(
                    "histogram_quantile(0.99, sum by (le, topic) (rate(outboxd_end_to_end_seconds_bucket{$outbox}[$__rate_interval])))",
                    "{{topic}}",
                )],
            ),
            panel(
                "Batches later than the objective, of the last hour",
                Ratio,
                &[(
                    "max by (topic) (namespace_job_topic:outboxd_end_to_end_late:ratio_rate1h{$outbox})",
                    "{{topic}}",
                )],
            ),
            panel(
                "Parts of a batch, 99th percentile",
                Seconds,
                &[
                    (
                        "histogram_quantile(0.99, sum by (le, stream) (rate(outboxd_claim_seconds_bucket{$outbox}[$__rate_interval])))",
                        "claim, {{stream}}",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le, stream) (rate(outboxd_publish_seconds_bucket{$outbox}[$__rate_interval])))",
                        "publish, {{stream}}",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le, stream) (rate(outboxd_mark_seconds_bucket{$outbox}[$__rate_interval])))",
                        "mark, {{stream}}",
                    ),
                ],
            ),
            panel(
                "Rows claimed and marked",
                PerSecond,
                &[
                    (
                        "sum(rate(outboxd_rows_claimed_total{$outbox}[$__rate_interval]))",
                        "claimed",
                    ),
                    (
                        "sum(rate(outboxd_rows_marked_total{$outbox}[$__rate_interval]))",
                        "marked",
                    ),
                ],
            ),
            panel(
                "Since the last acknowledgement of Kafka",
                Seconds,
                &[(
                    "time() - (outboxd_last_publish_timestamp_seconds{$outbox} > 0)",
                    "{{instance}}",
                )],
            ),
            panel(
                "Rows in flight",
                Count,
                &[("outboxd_in_flight_rows{$outbox}", "{{instance}}")],
            ),
            panel(
                "Bytes in flight",
                Bytes,
                &[("outboxd_in_flight_bytes{$outbox}", "{{instance}}")],
            ),
        ],
    },
    Row {
        title: "Errors and holds",
        panels: &[
            panel(
                "Dead letters",
                Count,
                &[("max by (topic) (outboxd_dead_rows{$outbox})", "{{topic}}")],
            ),
            panel(
                "Refusals",
                PerSecond,
                &[
                    (
                        "sum by (topic) (rate(outboxd_rows_retried_total{$outbox}[$__rate_interval]))",
                        "{{topic}}, to be tried again",
                    ),
                    (
                        "sum by (topic) (rate(outboxd_rows_dead_total{$outbox}[$__rate_interval]))",
                        "{{topic}}, dead",
                    ),
                ],
            ),
            panel(
                "Held back",
                Count,
                &[
                    ("max(outboxd_held_keys{$outbox})", "keys"),
                    ("max(outboxd_parked_topics{$outbox})", "topics"),
                    ("max(outboxd_paused_partitions{$outbox})", "partitions"),
                    ("max(outboxd_pauses{$outbox})", "pauses of operators"),
                ],
            ),
            panel(
                "Age of the oldest pause",
                Seconds,
                &[("max(outboxd_oldest_pause_seconds{$outbox})", "pause")],
            ),
            panel(
                "Possible duplicates",
                PerSecond,
                &[(
                    "sum by (cause) (rate(outboxd_possible_duplicates_total{$outbox}[$__rate_interval]))",
                    "{{cause}}",
                )],
            ),
            panel(
                "What should not be, in an hour",
                Count,
                &[
                    (
                        "sum(increase(outboxd_rows_unacknowledged_total{$outbox}[1h]))",
                        "rows unacknowledged",
                    ),
                    ("sum(increase(outboxd_rows_fenced_total{$outbox}[1h]))", "rows fenced"),
                    (
                        "sum(increase(outboxd_published_rows_lost_total{$outbox}[1h]))",
                        "published rows lost",
                    ),
                    (
                        "sum(increase(outboxd_rescan_found_rows_total{$outbox}[1h]))",
                        "rows found by the rescan",
                    ),
                ],
            ),
        ],
    },
    Row {
        title: "Leases and lanes",
        panels: &[
            panel("Lanes", Count, &[("outboxd_lanes_owned{$outbox}", "{{instance}}")]),
            panel(
                "Workers",
                Count,
                &[
                    ("max(outboxd_workers_live{$outbox})", "with a lease"),
                    ("sum(outboxd_backlog_sampled{$outbox})", "that sample the outbox"),
                    (
                        "count by (version, revision) (outboxd_build_info{$outbox})",
                        "{{version}} {{revision}}",
                    ),
                ],
            ),
            panel(
                "Leases, in an hour",
                Count,
                &[
                    ("sum(increase(outboxd_leases_lost_total{$outbox}[1h]))", "leases lost"),
                    (
                        "sum(increase(outboxd_lanes_recovered_total{$outbox}[1h]))",
                        "lanes taken over",
                    ),
                    (
                        "sum(increase(outboxd_rows_recovered_total{$outbox}[1h]))",
                        "unordered rows taken over",
                    ),
                ],
            ),
        ],
    },
    Row {
        title: "PostgreSQL",
        panels: &[
            panel(
                "Connections",
                Count,
                &[
                    ("sum by (state) (outboxd_database_connections{$outbox})", "{{state}}"),
                    ("sum(outboxd_database_connections_max{$outbox})", "at most"),
                ],
            ),
            panel(
                "Failed statements",
                PerSecond,
                &[(
                    "sum by (instance) (rate(outboxd_database_errors_total{$outbox}[$__rate_interval]))",
                    "{{instance}}",
                )],
            ),
            panel(
                "How long floors have waited",
                Seconds,
                &[("max(outboxd_floor_age_seconds{$outbox})", "for an open transaction")],
            ),
            panel(
                "Open writer, sequence",
                Count,
                &[
                    ("max(outboxd_open_writer_pid{$outbox})", "pid of the open writer"),
                    (
                        "max(outboxd_sequence_misconfigured{$outbox})",
                        "1: the sequence is misconfigured",
                    ),
                ],
            ),
            panel(
                "Vacuum",
                Count,
                &[
                    (
                        "max(outboxd_vacuum_horizon_age_transactions{$outbox})",
                        "age of the horizon in transactions",
                    ),
                    ("max(outboxd_dead_tuples{$outbox})", "dead tuples"),
                ],
            ),
            panel(
                "Rows removed by retention",
                PerSecond,
                &[(
                    "sum by (table) (rate(outboxd_rows_purged_total{$outbox}[$__rate_interval]))",
                    "{{table}}",
                )],
            ),
        ],
    },
    Row {
        title: "Kafka client",
        panels: &[
            panel(
                "Round trip of the slowest broker",
                Seconds,
                &[
                    (
                        "max by (quantile) (outboxd_kafka_round_trip_seconds{$outbox})",
                        "quantile {{quantile}}",
                    ),
                    ("max(outboxd_kafka_throttle_seconds{$outbox})", "throttled by a quota"),
                ],
            ),
            panel(
                "Rows in the queue",
                Count,
                &[("outboxd_kafka_queue_rows{$outbox}", "{{instance}}")],
            ),
            panel(
                "Bytes in the queue",
                Bytes,
                &[("outboxd_kafka_queue_bytes{$outbox}", "{{instance}}")],
            ),
            panel(
                "Errors",
                PerSecond,
                &[(
                    "sum by (reason) (rate(outboxd_kafka_errors_total{$outbox}[$__rate_interval]))",
                    "{{reason}}",
                )],
            ),
            panel(
                "Requests",
                PerSecond,
                &[
                    (
                        "sum(rate(outboxd_kafka_request_timeouts_total{$outbox}[$__rate_interval]))",
                        "not answered in time",
                    ),
                    (
                        "sum(rate(outboxd_kafka_request_retries_total{$outbox}[$__rate_interval]))",
                        "repeated",
                    ),
                ],
            ),
            panel(
                "Clients",
                Count,
                &[
                    (
                        "sum(outboxd_publisher_paused{$outbox})",
                        "workers that Kafka does not answer",
                    ),
                    (
                        "sum(increase(outboxd_producer_rebuilds_total{$outbox}[1h]))",
                        "producers replaced in an hour",
                    ),
                    (
                        "sum(increase(outboxd_admin_client_rebuilds_total{$outbox}[1h]))",
                        "clients for lookups replaced in an hour",
                    ),
                ],
            ),
        ],
    },
    Row {
        title: "Commands, consumers and the inbox",
        panels: &[
            panel(
                "Commands without success",
                Count,
                &[(
                    "max by (operation, state) (outboxd_commands{$outbox})",
                    "{{operation}}, {{state}}",
                )],
            ),
            panel(
                "Attempts",
                PerSecond,
                &[
                    ("sum(rate(outboxd_commands_granted_total{$outbox}[5m]))", "granted"),
                    (
                        "sum(rate(outboxd_command_replays_total{$outbox}[5m]))",
                        "answered with a stored success",
                    ),
                    (
                        "sum(rate(outboxd_command_conflicts_total{$outbox}[5m]))",
                        "refused: another request",
                    ),
                    ("sum(rate(outboxd_command_takeovers_total{$outbox}[5m]))", "taken over"),
                    (
                        "sum(rate(outboxd_commands_orphaned_total{$outbox}[5m]))",
                        "orphaned, failed for good",
                    ),
                ],
            ),
            panel(
                "Attempts, 99th percentile",
                Seconds,
                &[(
                    "histogram_quantile(0.99, sum by (le, outcome) (rate(outboxd_command_seconds_bucket{$outbox}[5m])))",
                    "{{outcome}}",
                )],
            ),
            panel(
                "Inbox messages",
                Count,
                &[
                    ("max(outboxd_inbox_unfinished_rows{$outbox})", "unfinished"),
                    ("max(outboxd_inbox_poison_rows{$outbox})", "poison"),
                ],
            ),
            panel(
                "Inbox messages, 99th percentile",
                Seconds,
                &[(
                    "histogram_quantile(0.99, sum by (le, consumer) (rate(outboxd_inbox_seconds_bucket{$outbox}[5m])))",
                    "{{consumer}}",
                )],
            ),
            panel(
                "Messages received again",
                PerSecond,
                &[
                    (
                        "sum by (consumer) (rate(outboxd_consumer_duplicates_total{$outbox}[5m]))",
                        "{{consumer}}, ignored",
                    ),
                    (
                        "sum(rate(outboxd_consumer_conflicts_total{$outbox}[5m]))",
                        "with another payload",
                    ),
                    (
                        "sum(rate(outboxd_inbox_takeovers_total{$outbox}[5m]))",
                        "claimed again, a lease ran out",
                    ),
                ],
            ),
        ],
    },
    Row {
        title: "Process",
        panels: &[
            panel(
                "Processor time",
                Ratio,
                &[(
                    "rate(process_cpu_seconds_total{$outbox}[$__rate_interval])",
                    "{{instance}}",
                )],
            ),
            panel(
                "Memory",
                Bytes,
                &[
                    ("process_resident_memory_bytes{$outbox}", "{{instance}}"),
                    ("process_virtual_memory_bytes{$outbox}", "{{instance}}, virtual"),
                    (
                        "process_virtual_memory_max_bytes{$outbox} > 0",
                        "{{instance}}, limit of virtual",
                    ),
                ],
            ),
            panel(
                "Files and threads",
                Count,
                &[
                    ("process_open_fds{$outbox}", "{{instance}}, open files"),
                    ("process_max_fds{$outbox}", "{{instance}}, open files at most"),
                    ("process_threads{$outbox}", "{{instance}}, threads"),
                ],
            ),
            panel(
                "Up",
                Seconds,
                &[("time() - process_start_time_seconds{$outbox}", "{{instance}}")],
            ),
            panel(
                "Certificates",
                Seconds,
                &[
                    (
                        "min by (certificate) ((outboxd_certificate_not_after_timestamp_seconds{$outbox} > 0) - time())",
                        "{{certificate}}, left",
                    ),
                    (
                        "max by (certificate) (time() - (outboxd_certificate_not_before_timestamp_seconds{$outbox} > 0))",
                        "{{certificate}}, age",
                    ),
                ],
            ),
        ],
    },
];

//! What a metric is: its kind, the labels with their bounds, and how it is registered.

use metrics::{
    Label, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{BUCKETS, kit};
use crate::domain::retention::Table;

/// The value of a label for everything that has no value of its own.
pub const OTHER: &str = "other";

/// The value of the label `stream`: whether a batch was of keyed rows, which are ordered, or of unordered rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Ordered,
    Unordered,
}

impl From<Stream> for SharedString {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Ordered => "ordered".into(),
            Stream::Unordered => "unordered".into(),
        }
    }
}

/// The value of the label `reason`: why a Kafka client of this process reported an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    Authentication,
    Tls,
    Resolve,
    Connection,
    Timeout,
    AllBrokersDown,
    Fatal,
    Other,
}

impl ClientError {
    const ALL: [ClientError; 8] = [
        ClientError::Authentication,
        ClientError::Tls,
        ClientError::Resolve,
        ClientError::Connection,
        ClientError::Timeout,
        ClientError::AllBrokersDown,
        ClientError::Fatal,
        ClientError::Other,
    ];
    pub const COUNT: usize = ClientError::ALL.len();

    fn name(self) -> &'static str {
        match self {
            ClientError::Authentication => "authentication",
            ClientError::Tls => "tls",
            ClientError::Resolve => "resolve",
            ClientError::Connection => "connection",
            ClientError::Timeout => "timeout",
            ClientError::AllBrokersDown => "all_brokers_down",
            ClientError::Fatal => "fatal",
            ClientError::Other => OTHER,
        }
    }
}

impl From<ClientError> for SharedString {
    fn from(error: ClientError) -> Self {
        error.name().into()
    }
}

/// The value of the label `cause`: why a record may repeat an earlier copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// An earlier copy may have been sent: its worker died or was replaced, or Kafka did not answer.
    Uncertain,
    /// An operator replays it.
    Replay,
}

impl Repeat {
    const ALL: [Repeat; 2] = [Repeat::Uncertain, Repeat::Replay];
    pub const COUNT: usize = Repeat::ALL.len();

    fn name(self) -> &'static str {
        match self {
            Repeat::Uncertain => "uncertain",
            Repeat::Replay => "replay",
        }
    }
}

impl From<Repeat> for SharedString {
    fn from(cause: Repeat) -> Self {
        cause.name().into()
    }
}

/// The value of the label `certificate`: whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    DatabaseCa,
    DatabaseClient,
    DatabaseServer,
    KafkaCa,
    KafkaClient,
    KafkaServer,
}

impl Certificate {
    const ALL: [Certificate; 6] = [
        Certificate::DatabaseCa,
        Certificate::DatabaseClient,
        Certificate::DatabaseServer,
        Certificate::KafkaCa,
        Certificate::KafkaClient,
        Certificate::KafkaServer,
    ];
    pub const COUNT: usize = Certificate::ALL.len();

    fn name(self) -> &'static str {
        match self {
            Certificate::DatabaseCa => "database_ca",
            Certificate::DatabaseClient => "database_client",
            Certificate::DatabaseServer => "database_server",
            Certificate::KafkaCa => "kafka_ca",
            Certificate::KafkaClient => "kafka_client",
            Certificate::KafkaServer => "kafka_server",
        }
    }
}

impl From<Certificate> for SharedString {
    fn from(certificate: Certificate) -> Self {
        certificate.name().into()
    }
}

impl From<Table> for SharedString {
    fn from(table: Table) -> Self {
        table.name().into()
    }
}

/// How a metric is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    /// A counter by topic, whose handles are kept: see [`super::topics`].
    TopicCounter,
    Gauge,
    /// A gauge that is changed by a difference, not set.
    GaugeByChange,
    /// A gauge of the whole outbox. Only the worker that samples it exports it.
    SampledGauge,
    Histogram,
}

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// Each label, and how many values it has at most.
    pub labels: &'static [(&'static str, usize)],
    pub help: &'static str,
}

impl Metric {
    /// The unit, which is the last word of the name.
    pub fn unit(&self) -> Unit {
        match self.name.rsplit('_').next() {
            Some("seconds") => Unit::Seconds,
            Some("bytes") => Unit::Bytes,
            _ => Unit::Count,
        }
    }

    /// How many series a scrape shows at most.
    pub fn series_max(&self) -> usize {
        let lines = match self.kind {
            // The buckets, the one without a bound, the sum and the count.
            Kind::Histogram => self.buckets().len() + 3,
            _ => 1,
        };
        self.labels.iter().map(|(_, values)| values).product::<usize>() * lines
    }

    /// The names of its series with their labels.
    pub fn series(&self) -> Vec<(String, Vec<&'static str>)> {
        let labels: Vec<&str> = self.labels.iter().map(|(label, _)| *label).collect();
        match self.kind {
            Kind::Histogram => vec![
                (format!("{}_bucket", self.name), [labels.as_slice(), &["le"]].concat()),
                (format!("{}_sum", self.name), labels.clone()),
                (format!("{}_count", self.name), labels),
            ],
            _ => vec![(self.name.to_owned(), labels)],
        }
    }

    /// The upper bounds of its buckets, if it is a histogram.
    pub fn buckets(&self) -> &'static [f64] {
        if self.name == super::COMMAND_SECONDS {
            kit::COMMAND_BUCKETS
        } else {
            BUCKETS
        }
    }

    /// Describes it, and registers the series that are known in advance, so that a scrape shows zeros rather than gaps.
    pub fn register(&self) {
        let (name, unit, help) = (self.name, self.unit(), self.help);
        match self.kind {
            Kind::Counter | Kind::TopicCounter => describe_counter!(name, unit, help),
            Kind::Gauge | Kind::GaugeByChange => describe_gauge!(name, unit, help),
            Kind::Histogram => describe_histogram!(name, unit, help),
            Kind::SampledGauge => return,
        }
        self.register_series();
    }

    fn register_series(&self) {
        let name = self.name;
        for labels in self.known_labels() {
            match self.kind {
                Kind::Counter | Kind::TopicCounter => counter!(name, labels).absolute(0),
                Kind::Gauge | Kind::GaugeByChange => gauge!(name, labels).set(0.0),
                // Without this a histogram is not exported before its first sample.
                Kind::Histogram => drop(histogram!(name, labels)),
                Kind::SampledGauge => {}
            }
        }
    }

    /// Every combination of the labels' values that are known in advance: one without labels if it has none.
    fn known_labels(&self) -> Vec<Vec<Label>> {
        let mut known = vec![Vec::new()];
        for &(label, _) in self.labels {
            let values = known_values(label);
            let longer = |labels: &Vec<Label>| -> Vec<Vec<Label>> {
                let with =
                    |&value: &&'static str| [labels.as_slice(), &[Label::from_static_parts(label, value)]].concat();
                values.iter().map(with).collect()
            };
            known = known.iter().flat_map(longer).collect();
        }
        known
    }
}

/// The values of a label that are known before anything is recorded.
fn known_values(label: &str) -> Vec<&'static str> {
    match label {
        "topic" | "consumer" => vec![OTHER],
        "stream" => vec!["ordered", "unordered"],
        "table" => Table::ALL.iter().map(|table| table.name()).collect(),
        "reason" => ClientError::ALL.iter().map(|error| error.name()).collect(),
        "cause" => Repeat::ALL.iter().map(|cause| cause.name()).collect(),
        "certificate" => Certificate::ALL.iter().map(|certificate| certificate.name()).collect(),
        "quantile" => vec!["0.5", "0.99"],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(kind: Kind, labels: &'static [(&'static str, usize)]) -> Metric {
        Metric {
            name: "outboxd_test_seconds",
            kind,
            labels,
            help: "",
        }
    }

    #[test]
    fn a_bound_counts_every_line_of_every_combination_of_labels() {
        assert_eq!(metric(Kind::Gauge, &[]).series_max(), 1);
        assert_eq!(
            metric(Kind::Gauge, &[("operation", 21), ("state", 5)]).series_max(),
            105
        );
        assert_eq!(
            metric(Kind::Histogram, &[("topic", 51)]).series_max(),
            51 * (BUCKETS.len() + 3)
        );
    }

    #[test]
    fn series_are_known_in_advance_where_all_labels_have_known_values() {
        let known = |labels| metric(Kind::Counter, labels).known_labels();
        assert_eq!(known(&[]), [Vec::new()]);
        let both = known(&[("consumer", 33), ("stream", 2)]);
        let ordered = [Label::new("consumer", OTHER), Label::new("stream", "ordered")];
        assert!(both.len() == 2 && both[0] == ordered, "{both:?}");
        assert!(known(&[("consumer", 33), ("outcome", 3)]).is_empty());
    }
}

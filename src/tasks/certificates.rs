//! Records when the certificates expire by which this process and the servers know each other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::Shutdown;
use crate::jitter::jittered;
use crate::kafka::Publisher;
use crate::metrics::{self, Certificate};
use crate::outbox::Outbox;
use crate::tls::Validity;

/// Certificates last for hours at least, and each server is asked for its own by a connection that carries nothing.
const CHECK_EVERY: Duration = Duration::from_secs(3600);

pub struct CertificatesTask {
    pub outbox: Arc<Outbox>,
    pub publisher: Arc<Publisher>,
}

impl CertificatesTask {
    /// Runs until `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        let draining = &shutdown.draining;
        while draining.run_until_cancelled(self.check()).await.is_some() {
            draining.run_until_cancelled(sleep(jittered(CHECK_EVERY))).await;
        }
    }

    async fn check(&self) {
        let (database, kafka) = tokio::join!(self.outbox.certificates(), self.publisher.certificates());
        if let Some(database) = database {
            record(Certificate::DatabaseCa, database.ca);
            record(Certificate::DatabaseClient, database.client);
            record(Certificate::DatabaseServer, database.server);
        }
        if let Some(kafka) = kafka {
            record(Certificate::KafkaCa, kafka.ca);
            record(Certificate::KafkaClient, kafka.client);
            record(Certificate::KafkaServer, kafka.server);
        }
    }
}

/// What cannot be read now stays as it was known last.
fn record(certificate: Certificate, validity: Option<Result<Validity, String>>) {
    let Validity { not_before, not_after } = match validity.transpose() {
        Ok(validity) => validity.unwrap_or_default(),
        Err(reason) => return debug!(reason, ?certificate, "cannot tell when a certificate expires"),
    };
    metrics::certificate_not_before(certificate, not_before);
    metrics::certificate_not_after(certificate, not_after);
}

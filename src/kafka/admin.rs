//! The client that looks topics up. It sends no records, so it can be replaced at any time.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaResult;

use super::log_context::LogContext;

pub struct Admin {
    /// `None` only while it is being dropped.
    client: Option<AdminClient<LogContext>>,
}

impl Admin {
    pub fn new(config: &ClientConfig) -> KafkaResult<Arc<Self>> {
        let client = AdminClient::from_config_and_context(config, LogContext)?;
        Ok(Arc::new(Admin { client: Some(client) }))
    }

    pub fn client(&self) -> &AdminClient<LogContext> {
        self.client.as_ref().expect("present until dropped")
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Closing waits for threads and sockets, so it happens on a separate thread if one can be started.
        let client = self.client.take();
        let closer = std::thread::Builder::new().name("closer".to_owned());
        let _ = closer.spawn(move || drop(client));
    }
}

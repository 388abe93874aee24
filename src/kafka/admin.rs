//! The client that asks the brokers what they have. It sends no records, so it can be exchanged at any time.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaResult;

use super::producer::Quiet;

pub struct Admin {
    /// `None` only while being dropped.
    client: Option<AdminClient<Quiet>>,
}

impl Admin {
    pub fn new(config: &ClientConfig) -> KafkaResult<Arc<Self>> {
        let client = AdminClient::from_config_and_context(config, Quiet)?;
        Ok(Arc::new(Admin { client: Some(client) }))
    }

    pub fn client(&self) -> &AdminClient<Quiet> {
        self.client.as_ref().expect("present until dropped")
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Closing waits for threads and sockets: not on a thread that others' futures run on, unless there is no other.
        let client = self.client.take();
        let closer = std::thread::Builder::new().name("closer".to_owned());
        let _ = closer.spawn(move || drop(client));
    }
}

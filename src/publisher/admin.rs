//! The client that asks the brokers what they have. It sends no records, so it can be exchanged at any time.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaResult;

pub struct Admin {
    /// `None` only while being dropped.
    client: Option<AdminClient<DefaultClientContext>>,
}

impl Admin {
    pub fn new(config: &ClientConfig) -> KafkaResult<Arc<Self>> {
        Ok(Arc::new(Admin {
            client: Some(config.create()?),
        }))
    }

    pub fn client(&self) -> &AdminClient<DefaultClientContext> {
        self.client.as_ref().expect("present until dropped")
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Closing waits for threads and sockets: not on a thread that others' futures run on.
        let client = self.client.take();
        std::thread::spawn(move || drop(client));
    }
}

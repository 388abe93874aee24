//! The client that looks topics up. It sends no records, so it can be replaced at any time.

use std::sync::Arc;

use rdkafka::admin::AdminClient;
use rdkafka::error::KafkaResult;

use super::clients::{Clients, TakesTokens};
use super::context::Context;

pub struct Admin {
    /// `None` only while it is being dropped.
    client: Option<AdminClient<Context>>,
}

impl Admin {
    pub fn new(clients: &Clients) -> KafkaResult<Arc<Self>> {
        let client = clients.admin()?;
        let admin = Arc::new(Admin { client: Some(client) });
        clients.keep_logged_in(&admin);
        Ok(admin)
    }

    /// The client. Nobody polls it, so it is given its token here.
    pub fn client(&self) -> &AdminClient<Context> {
        self.refresh_token();
        self.unrefreshed()
    }

    /// The generation of the settings that it was built from.
    pub fn generation(&self) -> u64 {
        self.unrefreshed().inner().context().generation
    }

    fn unrefreshed(&self) -> &AdminClient<Context> {
        self.client.as_ref().expect("present until dropped")
    }
}

impl TakesTokens for Admin {
    fn refresh_token(&self) {
        let client = self.unrefreshed().inner();
        client.context().refresh_token(client.native_client());
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

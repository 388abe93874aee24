//! What `outboxd verify` says of the table and the topics, once everything is quiet.

use serde_json::Value;

use crate::environment::Environment;

pub struct Oracle(pub Value);

impl Oracle {
    /// Blocks for as long as it takes to read everything that was ever published.
    pub fn ask(environment: &Environment) -> Self {
        let args = [
            "--kafka-brokers",
            &environment.kafka.address,
            "--serialized-keys",
            "--json",
        ];
        let output = environment.world.outboxd("verify", &args);
        let answer = serde_json::from_slice(&output.stdout);
        Oracle(answer.unwrap_or_else(|_| panic!("verify says nothing: {output:?}")))
    }

    /// "undecided" comes with counts of 0: it is the word that decides.
    pub fn verdict(&self) -> &str {
        self.0["verdict"].as_str().unwrap_or("none")
    }

    pub fn count(&self, finding: &str) -> u64 {
        let found = &self.0[finding]["count"];
        found
            .as_u64()
            .unwrap_or_else(|| panic!("verify does not count {finding}"))
    }

    pub fn unflagged(&self) -> u64 {
        self.0["duplicated"]["unflagged"].as_u64().expect("verify counts them")
    }
}

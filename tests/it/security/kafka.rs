//! Kafka behind TLS, SASL and ACLs.

mod acls;
mod failures;
mod logins;
mod rotation;
mod tokens;

use testkit::*;

/// What begins each warning about TLS and SASL.
const INSECURE: &str = "Kafka cannot be reached securely";

/// How many lines of this level contain these words.
fn lines(relay: &Relay, level: &str, words: &str) -> usize {
    let level = format!("\"level\":\"{level}\"");
    let log = relay.log();
    let of_level = log.lines().filter(|line| line.contains(&level));
    of_level.filter(|line| line.contains(words)).count()
}

/// Waits until the relay warns of this.
async fn warned(relay: &Relay, words: &str) {
    eventually(SOON, &format!("a warning: {words}"), async || {
        (lines(relay, "WARN", words) > 0).then_some(())
    })
    .await;
}

/// Rows are published, exactly once each, and nobody warns of anything.
async fn assert_publishes(world: &World, relay: &Relay, topic: &str) {
    world.fill(topic, 40, 5).await;
    world.fill(topic, 10, 0).await;
    world.drained(SOON).await;
    world.history(topic).await.assert_exact();
    assert_eq!(lines(relay, "WARN", ""), 0, "{}", relay.log());
}

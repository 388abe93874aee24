//! A topic that a user may not write to.

use testkit::*;

#[tokio::test]
async fn a_topic_without_its_acl_is_parked_and_named_and_others_flow() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let allowed = world.topic("allowed", 2, &[]).await;
    let forbidden = world.topic("forbidden", 2, &[]).await;
    secure.allow_write("User:narrow", &allowed);
    let access = secure.by_password("PLAIN", "narrow", "narrow-s3cret");
    let relay = access.relay(&world).start_ready().await;
    world.fill(&forbidden, 20, 1).await;
    world.fill(&forbidden, 10, 0).await;
    // One lane, and the rows without one.
    world.held(2).await;
    world.fill(&allowed, 100, 10).await;
    let flows =
        format!("SELECT count(*) = 100 FROM outbox.message WHERE topic = '{allowed}' AND published_at IS NOT NULL");
    world.until(&flows).await;
    let acl = format!("User:narrow needs the ACL ALLOW WRITE ON TOPIC {forbidden}");
    let reasons = world
        .text("SELECT string_agg(DISTINCT reason, '|') FROM outbox.hold")
        .await;
    assert!(reasons.ends_with(&acl) && !reasons.contains('|'), "{reasons}");
    assert!(relay.logged(&acl), "{}", relay.log());
    let status = world.outboxd("status", &[]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains(&acl), "{status}");
    world.assert_nobody_blamed().await;
    assert_eq!(relay.metric("outboxd_publisher_paused"), Some(0.0));

    secure.allow_write("User:narrow", &forbidden);
    world.drained(SOON).await;
    world.held(0).await;
    for topic in [&allowed, &forbidden] {
        world.history(topic).await.assert_counted_by(&[&relay]);
    }
}

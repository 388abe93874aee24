//! Topics that refuse much are left alone for a while: each refusal costs the broker a new epoch of the producer, and a topic that
//! refuses everything may hold thousands of keys. What is taken is not counted: a topic that was mended flows at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::debug;

/// So many refusals of a topic, and it rests.
const REFUSALS: usize = 64;
const REST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Rests(Mutex<HashMap<String, Topic>>);

#[derive(Default)]
struct Topic {
    /// Since it last rested.
    refusals: usize,
    until: Option<Instant>,
}

impl Rests {
    pub fn count_refusal(&self, name: &str, now: Instant) {
        let mut topics = self.lock();
        let topic = topics.entry(name.to_owned()).or_default();
        topic.refusals += 1;
        if topic.refusals >= REFUSALS {
            topic.refusals = 0;
            topic.until = Some(now + REST);
            debug!(
                topic = name,
                "the topic refuses much; its holds are retried a second later"
            );
        }
    }

    pub fn is_resting(&self, topic: &str, now: Instant) -> bool {
        let topics = self.lock();
        topics.get(topic).is_some_and(|topic| topic.until > Some(now))
    }

    /// How long until one has rested enough.
    pub fn shortest(&self, now: Instant) -> Option<Duration> {
        let topics = self.lock();
        let ends = topics.values().filter_map(|topic| topic.until);
        ends.filter(|end| *end > now).map(|end| end - now).min()
    }

    /// What nobody holds any more is forgotten, or the map would grow with every topic that ever refused a row.
    pub fn keep(&self, is_held: impl Fn(&str) -> bool) {
        self.lock().retain(|topic, _| is_held(topic));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Topic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(rests: &Rests, topic: &str, times: usize, now: Instant) {
        (0..times).for_each(|_| rests.count_refusal(topic, now));
    }

    #[test]
    fn a_topic_that_refuses_much_rests_and_no_other_does() {
        let (rests, now) = (Rests::default(), Instant::now());
        refuse(&rests, "sick", REFUSALS - 1, now);
        assert!(!rests.is_resting("sick", now));
        assert_eq!(rests.shortest(now), None);
        refuse(&rests, "sick", 1, now);
        assert!(rests.is_resting("sick", now));
        assert!(!rests.is_resting("well", now));
        assert_eq!(rests.shortest(now + REST / 2), Some(REST / 2));
        assert!(!rests.is_resting("sick", now + REST));
        assert_eq!(rests.shortest(now + REST), None);
    }

    #[test]
    fn after_a_rest_it_is_counted_anew() {
        let (rests, now) = (Rests::default(), Instant::now());
        refuse(&rests, "sick", REFUSALS, now);
        let later = now + REST;
        refuse(&rests, "sick", REFUSALS - 1, later);
        assert!(!rests.is_resting("sick", later));
        refuse(&rests, "sick", 1, later);
        assert!(rests.is_resting("sick", later));
    }

    #[test]
    fn what_is_no_longer_held_is_forgotten() {
        let (rests, now) = (Rests::default(), Instant::now());
        refuse(&rests, "sick", REFUSALS, now);
        refuse(&rests, "mended", REFUSALS, now);
        rests.keep(|topic| topic == "sick");
        assert!(rests.is_resting("sick", now));
        assert!(!rests.is_resting("mended", now));
    }
}

//! How often one client may try to log in. Each wrong token doubles the time until its next attempt is heard.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const WAIT_MIN: Duration = Duration::from_secs(1);
/// Not longer, because behind a proxy all are one client, and somebody among them may have a page to see to.
const WAIT_MAX: Duration = Duration::from_secs(16);
/// After this long without an attempt, a client begins anew.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// So many clients are remembered, those that came last.
const CLIENTS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct Throttle(HashMap<IpAddr, Attempts>);

#[derive(Clone, Copy, Debug)]
struct Attempts {
    wait: Duration,
    last: Instant,
}

impl Throttle {
    /// Notes an attempt as one that fails, so that none at the same time is heard. Fails with the time to wait, if there is one.
    pub fn attempt(&mut self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let since = |last: Instant| now.saturating_duration_since(last);
        self.0.retain(|_, attempts| since(attempts.last) < FORGET_AFTER);
        if let Some(attempts) = self.0.get_mut(&client) {
            let wait = attempts.wait.saturating_sub(since(attempts.last));
            if !wait.is_zero() {
                return Err(wait);
            }
            attempts.wait = (attempts.wait * 2).min(WAIT_MAX);
            attempts.last = now;
            return Ok(());
        }
        if self.0.len() >= CLIENTS_MAX {
            self.forget_oldest();
        }
        let first = Attempts {
            wait: WAIT_MIN,
            last: now,
        };
        self.0.insert(client, first);
        Ok(())
    }

    fn forget_oldest(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, attempts)| attempts.last);
        if let Some(client) = oldest.map(|(client, _)| *client) {
            self.0.remove(&client);
        }
    }

    /// The attempt has not failed.
    pub fn succeeded(&mut self, client: IpAddr) {
        self.0.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn each_wrong_token_doubles_the_wait_of_its_client_up_to_a_bound() {
        let (mut throttle, mut now) = (Throttle::default(), Instant::now());
        for seconds in [1, 2, 4, 8, 16, 16] {
            throttle.attempt(client(1), now).expect("heard");
            let wait = Duration::from_secs(seconds);
            assert_eq!(throttle.attempt(client(1), now), Err(wait), "one at the same time");
            now += wait;
        }
        throttle.attempt(client(2), now).expect("another client");
        throttle.succeeded(client(1));
        throttle.attempt(client(1), now).expect("heard at once");
    }

    #[test]
    fn a_bounded_number_of_clients_is_remembered_and_not_for_ever() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        for number in 0..=CLIENTS_MAX as u32 {
            let at = now + Duration::from_micros(number.into());
            throttle.attempt(client(number), at).expect("heard");
        }
        assert_eq!(throttle.0.len(), CLIENTS_MAX);
        assert!(throttle.0.contains_key(&client(1)) && !throttle.0.contains_key(&client(0)));
        let later = now + FORGET_AFTER + WAIT_MAX;
        throttle.attempt(client(5_000), later).expect("heard");
        assert_eq!(throttle.0.len(), 1, "the others are forgotten");
    }
}

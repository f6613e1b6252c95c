//! Whether the other side of a link is there, how far it is away, and when to try again when it is not.
//!
//! The dialer pings, one ping at a time, and the other side answers at once. A long frame ahead of a ping delays its answer, so what
//! the kernel takes of the output counts as a sign of life, too. The other side takes a link on which nothing came for a while for
//! one whose dialer is gone. All times are microseconds of one monotonic clock.

/// How often a link is pinged.
const PING_US: u64 = 1_000_000;
/// The least silence after which a link counts as broken.
const MIN_SILENCE_US: u64 = 2_000_000;
/// The first and the longest pause before a link is dialed again.
const BACKOFF_MS: (u64, u64) = (50, 2_000);

/// How long the other side may be silent: a third of `cluster-node-timeout`, so that a link is dialed again before its node is given up.
pub fn silence_us(node_timeout_ms: u64) -> u64 {
    node_timeout_ms
        .saturating_mul(1_000)
        .checked_div(3)
        .map_or(MIN_SILENCE_US, |third| third.max(MIN_SILENCE_US))
}

/// How long a link that was accepted may be silent: its dialer pings, and knows before this that something is wrong.
pub fn idle_us(silence_us: u64) -> u64 {
    silence_us.saturating_mul(2).saturating_add(5 * PING_US)
}

/// The pings of one connected link.
#[derive(Debug)]
pub struct KeepAlive {
    silence_us: u64,
    /// When the next ping goes, if none is unanswered.
    next_us: u64,
    /// The ping that is unanswered, when it went, and the last sign of life since then.
    unanswered: Option<Unanswered>,
    number: u64,
    smoothed_us: u64,
    told_us: u64,
}

#[derive(Debug)]
struct Unanswered {
    number: u64,
    sent_us: u64,
    alive_us: u64,
}

impl KeepAlive {
    /// A link that is connected since now, with the round trip of its handshake.
    pub fn new(now_us: u64, silence_us: u64, rtt_us: u32) -> Self {
        let rtt_us = u64::from(rtt_us.max(1));
        Self {
            silence_us,
            next_us: now_us + PING_US,
            unanswered: None,
            number: 0,
            smoothed_us: rtt_us,
            told_us: rtt_us,
        }
    }

    /// Another silence from now on.
    pub fn set_silence(&mut self, silence_us: u64) {
        self.silence_us = silence_us;
    }

    /// The number of the ping to be sent now, if it is time.
    pub fn ping(&mut self, now_us: u64) -> Option<u64> {
        if self.unanswered.is_some() || now_us < self.next_us {
            return None;
        }
        self.number += 1;
        self.unanswered = Some(Unanswered {
            number: self.number,
            sent_us: now_us,
            alive_us: now_us,
        });
        self.next_us = now_us + PING_US;
        Some(self.number)
    }

    /// The answer to a ping: the round-trip time, when it is another than the one told before by a quarter or more. An answer to
    /// nothing ([`awaits`](Self::awaits)) says nothing.
    pub fn pong(&mut self, now_us: u64, number: u64) -> Option<u32> {
        let unanswered = self.unanswered.take_if(|ping| ping.number == number)?;
        let sample_us = now_us.saturating_sub(unanswered.sent_us).max(1);
        self.smoothed_us = (7 * self.smoothed_us + sample_us).div_ceil(8);
        let change_us = self.smoothed_us.abs_diff(self.told_us);
        if 4 * change_us < self.told_us {
            return None;
        }
        self.told_us = self.smoothed_us;
        Some(u32::try_from(self.told_us).unwrap_or(u32::MAX))
    }

    /// Whether this ping is unanswered.
    pub fn awaits(&self, number: u64) -> bool {
        self.unanswered.as_ref().is_some_and(|ping| ping.number == number)
    }

    /// The kernel took output.
    pub fn took_output(&mut self, now_us: u64) {
        if let Some(ping) = &mut self.unanswered {
            ping.alive_us = now_us;
        }
    }

    /// Whether the other side has been silent too long.
    pub fn is_silent(&self, now_us: u64) -> bool {
        self.unanswered
            .as_ref()
            .is_some_and(|ping| now_us.saturating_sub(ping.alive_us) >= self.silence_us)
    }

    /// When to look again.
    pub fn deadline_us(&self) -> u64 {
        match &self.unanswered {
            Some(ping) => ping.alive_us.saturating_add(self.silence_us),
            None => self.next_us,
        }
    }
}

/// Pauses between attempts to connect.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause before the next attempt, milliseconds: twice as long each time, less up to half of it by `chance`, which is random: the
    /// links of a node that came back are not all dialed at the same time.
    pub fn next_ms(&mut self, chance: u32) -> u64 {
        let (first, longest) = BACKOFF_MS;
        let whole = longest.min(first << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        whole - whole / 2 * u64::from(chance) / u64::from(u32::MAX)
    }

    /// The link was connected.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const SILENCE: u64 = 5 * SECOND;

    #[test]
    fn a_ping_goes_each_second_and_not_before_the_last_one_is_answered() {
        let mut link = KeepAlive::new(0, SILENCE, 100);
        assert_eq!(link.deadline_us(), SECOND);
        assert_eq!(link.ping(SECOND - 1), None);
        assert_eq!(link.ping(SECOND), Some(1));
        assert_eq!(link.ping(3 * SECOND), None);
        assert_eq!(link.pong(3 * SECOND, 2), None, "not the one that was sent");
        assert_eq!(link.ping(3 * SECOND), None);
        link.pong(3 * SECOND, 1);
        assert_eq!(link.ping(3 * SECOND), Some(2));
    }

    #[test]
    fn silence_breaks_a_link_and_output_that_goes_does_not() {
        let mut link = KeepAlive::new(0, SILENCE, 100);
        assert!(!link.is_silent(100 * SECOND), "nothing was asked");
        link.ping(SECOND);
        assert_eq!(link.deadline_us(), 6 * SECOND);
        assert!(!link.is_silent(6 * SECOND - 1));
        assert!(link.is_silent(6 * SECOND));
        link.took_output(4 * SECOND);
        assert!(!link.is_silent(6 * SECOND));
        assert!(link.is_silent(9 * SECOND));
        link.set_silence(20 * SECOND);
        assert!(!link.is_silent(9 * SECOND));
        link.pong(9 * SECOND, 1);
        assert!(!link.is_silent(100 * SECOND));
    }

    #[test]
    fn a_round_trip_is_told_when_it_is_another_by_a_quarter() {
        let mut link = KeepAlive::new(0, SILENCE, 1000);
        let mut told = Vec::new();
        for second in 1..60 {
            let now = second * SECOND;
            let number = link.ping(now).expect("each second");
            told.extend(link.pong(now + 4000, number));
        }
        assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
        assert!(
            told.len() < 8 && told[0] >= 1250 && *told.last().unwrap() > 3000,
            "{told:?}"
        );
    }

    #[test]
    fn the_silence_follows_the_node_timeout() {
        assert_eq!(silence_us(15_000), 5 * SECOND);
        assert_eq!(silence_us(100), 2 * SECOND);
        assert_eq!(idle_us(silence_us(15_000)), 15 * SECOND);
        assert!(silence_us(u64::MAX) > 1 << 60 && idle_us(u64::MAX) == u64::MAX);
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..8).map(|_| backoff.next_ms(0)).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff.next_ms(u32::MAX), 1000);
        backoff.reset();
        assert!((25..=50).contains(&backoff.next_ms(u32::MAX / 3)));
    }
}

//! What stands behind a NOHANG GETJOB that waits for reservations, asked by the same session.

use super::*;

/// A session at one of its home shards.
pub(super) type Who = (ShardNo, ShardNo, SessionId);

impl Reference {
    /// Whether a session has to wait its turn here.
    pub(super) fn is_held_up(&self, who: Who) -> bool {
        self.lingers(who) || self.behind.iter().any(|(behind, ..)| *behind == who)
    }

    fn lingers(&self, who: Who) -> bool {
        self.waiters.iter().any(|waiter| {
            let Take { manner, patience, .. } = waiter.take;
            who_of(waiter.asker) == who && patience == Patience::Reserved && manner == Manner::Deliver
        })
    }

    /// Its GETJOB has ended: what stands behind takes its turn, after those that came to this before.
    pub(super) fn lingers_no_more(&mut self, asker: Asker) {
        let who = who_of(asker);
        if self.is_held_up(who) && !self.lingers(who) && !self.ready.contains(&who) {
            self.ready.push_back(who);
        }
    }

    /// A request that stands behind others is cancelled; whether there is one.
    pub(super) fn withdraw(&mut self, asker: Asker) -> bool {
        let before = self.behind.len();
        self.behind.retain(|(who, ticket, request)| {
            (*who, *ticket) != (who_of(asker), asker.1)
                || !matches!(request, Request::Add(_) | Request::Take(_))
        });
        self.behind.len() < before
    }

    /// One request of each session in turn. `actual` is what ended, for what is left to chance.
    pub(super) fn take_turns(&mut self, now: Now, shard: ShardNo, actual: &[(Ticket, Answer)]) {
        while let Some(at) = self.ready.iter().position(|(home, ..)| *home == shard) {
            let who = self.ready.remove(at).expect("it was found");
            let Some(first) = self.behind.iter().position(|(behind, ..)| *behind == who) else {
                continue;
            };
            let (_, ticket, request) = self.behind.remove(first);
            let end = actual.iter().find(|(ended, _)| *ended == ticket);
            let answer = self.perform(
                now,
                ticket,
                &request,
                end.map_or(&Answer::Waiting, |(_, answer)| answer),
            );
            if !matches!(answer, Answer::Waiting) {
                self.ends.push((ticket, answer));
            }
            self.lingers_no_more((shard, ticket));
        }
    }
}

pub(super) fn who_of((home, ticket): Asker) -> Who {
    (home, ticket.shard, ticket.session)
}

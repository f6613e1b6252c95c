//! What a home shard counts, for INFO (weakness 62 of the reference).

/// Events since the start, or since CONFIG RESETSTAT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Jobs accepted by ADDJOB.
    pub added: u64,
    /// Of those, with fewer than three copies because the default was lowered.
    pub added_below_3_copies: u64,
    /// Jobs handed out.
    pub delivered: u64,
    /// Jobs removed by ACKJOB.
    pub acknowledged: u64,
    /// Jobs removed by FASTACK.
    pub fast_acknowledged: u64,
    /// Jobs removed by DELJOB.
    pub deleted: u64,
    /// Jobs queued again because their lease ended.
    pub requeued: u64,
    /// Jobs queued again by NACK.
    pub nacked: u64,
    /// Jobs queued by ENQUEUE.
    pub enqueued: u64,
    /// Jobs taken out of their queue by DEQUEUE.
    pub dequeued: u64,
    /// Leases extended by WORKING.
    pub postponed: u64,
    /// Jobs whose life ended before they were acknowledged; at-most-once jobs that had been handed out not counted.
    pub expired: u64,
    /// Delivered at-most-once jobs removed because memory was short.
    pub evicted: u64,
    /// Handed-out jobs that did not reach their client and were brought back.
    pub undelivered_returned: u64,
    /// Jobs removed by DEBUG FLUSHALL.
    pub flushed: u64,
    /// Claims refused because the job was gone, dequeued or its queue paused.
    pub claims_refused: u64,
    /// Copies sent to other nodes, those sent again counted each time.
    pub copies_sent: u64,
    /// Copies of other nodes' jobs taken.
    pub copies_taken: u64,
    /// Copies of other nodes' jobs refused.
    pub copies_refused: u64,
    /// ADDJOBs that ended without enough copies.
    pub copies_failed: u64,
    /// Jobs sent to consumers at other nodes.
    pub exported: u64,
    /// Jobs that came from other nodes for consumers here.
    pub imported: u64,
    /// Jobs with RETRY 0 that another node had no room for when they came.
    pub transfers_refused: u64,
    /// Jobs with RETRY 0 that count as handed out, since the node that they went to lost its memory, or was forgotten.
    pub transfers_in_doubt: u64,
    /// Copies dropped since this node leaves and others hold them.
    pub given_away: u64,
    /// Jobs added here that other nodes took over since memory was short.
    pub placed_elsewhere: u64,
    /// Jobs for which repair asked other nodes, since holders were lost.
    pub repaired: u64,
    /// Jobs acknowledged at another node.
    pub acknowledged_elsewhere: u64,
    /// Acknowledged jobs that this node found all holders to know of.
    pub collected: u64,
    /// Jobs whose acknowledgement was learnt of only when they were to be queued again.
    pub collected_late: u64,
    /// ACKJOBs of IDs that were not known here, of which all nodes were told.
    pub dummies: u64,
    /// The same, beyond what is remembered: those that could be reached were told once.
    pub dummies_refused: u64,
    /// Requests for which other nodes were asked.
    pub asked_elsewhere: u64,
    /// Questions that were sent again.
    pub asked_again: u64,
    /// Requests of other nodes' clients that changed something here.
    pub answered_elsewhere: u64,
    /// Idle queues collected.
    pub queues_collected: u64,
}

/// What there is at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Jobs.
    pub jobs: u64,
    /// Acknowledged jobs that other nodes have not all heard of; not counted among the jobs.
    pub acked: u64,
    /// Of the jobs, those with RETRY 0 on their way to another node.
    pub transfers: u64,
    /// Answers about such jobs of other nodes, until those nodes know them.
    pub transfer_answers: u64,
    /// ADDJOBs that wait for copies.
    pub adding: u64,
    /// Jobs that were to have several copies, all of which lie on this node's host.
    pub on_one_host: u64,
    /// Of the jobs, those in their queues.
    pub queued: u64,
    /// Of those, handed out at most once and kept only until memory is short or their life ends.
    pub delivered_at_most_once: u64,
    /// Queues.
    pub queues: u64,
    /// GETJOBs that are not finished.
    pub waiters: u64,
    /// ADDJOBs that wait for memory.
    pub short: u64,
    /// Requests that stand behind others of their session, which wait.
    pub behind: u64,
    /// Jobs offered and not yet claimed or returned.
    pub reserved: u64,
}

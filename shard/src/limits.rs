//! Every limit of the broker in one place, each with its reason. Reaching one is back-pressure or an error, never
//! growth (invariant 7).

/// Shards of a node. Far above the cores of any machine; keeps a shard number and the mesh small.
pub const MAX_SHARDS: u16 = 256;

/// Arguments of one request (Redis and the original: 1024 * 1024).
pub const MAX_ARGUMENTS: usize = 1 << 20;
/// Bytes of one argument, so also of a job's body (Redis and the original: 512 MiB).
pub const MAX_BULK_BYTES: usize = 512 << 20;
/// Bytes of a line (an inline request, or the length before an argument) without its end (Redis: 64 KiB).
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Bytes of one request, its framing included (the original's query buffer: 1 GiB).
pub const MAX_REQUEST_BYTES: usize = 1 << 30;
/// Arguments before the client has authenticated (Redis 7): enough for HELLO and AUTH, too little to fill the memory.
pub const MAX_ARGUMENTS_UNAUTHENTICATED: usize = 10;
/// Bytes of one argument before the client has authenticated (Redis 7).
pub const MAX_BULK_BYTES_UNAUTHENTICATED: usize = 16 << 10;

/// Input that a session keeps while it may not go on: beyond it the socket is not read.
pub const BACKLOG_BYTES: usize = 256 << 10;
/// Output above which a session starts no further command until its client has read.
pub const OUTPUT_HIGH_BYTES: usize = 1 << 20;
/// Bytes of answers that a paged reply (COUNT of GETJOB, QPEEK, scans) may gather before it is sent as it is.
pub const REPLY_BYTES: usize = 2 << 20;
/// What client buffers may take together: `maxmemory` by this. Else half-sent requests of some keep everybody from adding jobs.
pub const CLIENTS_SHARE: u64 = 4;
/// Percent of `maxmemory` that they may take when most of it is one session's: a large message is no attack.
pub const ONE_CLIENT_PERCENT: u64 = 75;
/// Requests of one session that may be unanswered at once.
pub const SESSION_PENDING: usize = 1024;

/// Requests from one shard to another that may be unanswered at once: bounds the mesh and the replies it reserves.
pub const MESH_CREDITS: u32 = 1024;
/// Bytes of MONITOR's lines that a shard passes on in a turn; what is more is counted and left out.
pub const FEED_BYTES: usize = 1 << 20;
/// How long clients may take to read their last replies when the node stops.
pub const STOP_GRACE_MS: u64 = 3_000;
/// How long the last mark of the log may take when the node stops.
pub const LOG_STOP_MS: u64 = 10_000;
/// Spare segments of the log that are kept for what frees space when the disk is full.
pub const LOG_RESERVE_SEGMENTS: usize = 2;
/// Node-wide changes that may be under way at once.
pub const CHANGES_IN_FLIGHT: usize = 1024;

/// Jobs handed out or looked at in one step; a larger COUNT is served in several.
pub const TAKE_STEP: u32 = 512;
/// Jobs that one shard offers at a time to a GETJOB over several home shards.
pub const OFFER_STEP: u32 = 256;
/// IDs of one request handled in one step.
pub const IDS_STEP: usize = 512;
/// Elements that one scan step looks at.
pub const SCAN_STEP: usize = 1024;
/// Timers, held jobs, woken waiters or evictions handled in one step.
pub const UPKEEP_STEP: usize = 256;
/// IDs or jobs of a request that count as much as a further request, when those that stood behind others of their session are
/// handled, `UPKEEP_STEP` in one step.
pub const LINE_ITEMS: usize = 16;
/// Parts about a shard (CLIENT LIST, INFO) made in one turn.
pub const GATHERS_STEP: usize = 8;
/// How long a RETRY 0 job is kept after its handing out even when memory is short: its reply may still be on its way.
pub const EVICTION_GRACE_S: u32 = 5;
/// Slab chunks given back in one step after FLUSHALL.
pub const TEARDOWN_STEP: usize = 4;

/// Queues of one GETJOB. Each pass over them, and each waiter's seats, cost their number; no consumer reads more.
pub const GETJOB_QUEUES: usize = 1024;
/// Bytes of a name pattern. Matching costs at most pattern times name, and no name is longer than this.
pub const PATTERN_BYTES: usize = 256;
/// Patterns of one CONFIG GET: each is tried on every setting, in one turn of the shard.
pub const PATTERNS: usize = 64;
/// IDs of one CLIENT LIST: they are copied to every shard.
pub const CLIENT_IDS: usize = 1024;
/// Names of one COMMAND INFO, COMMAND DOCS, LATENCY HISTOGRAM or LATENCY RESET: a short name asks for a long answer.
pub const NAMES: usize = 1024;

/// An ADDJOB sends its copies again, and to one node more, after this long or four round trips.
pub const COPY_AGAIN_MS: u64 = 50;
/// Copies that nobody waits for are sent again after this long at the most.
pub const COPY_AGAIN_MAX_MS: u64 = 10_000;
/// What copies from other nodes may take beyond the memory that is lent to the shard, until more is: they are refused at the limit only.
pub const COPIES_OVERDRAFT_BYTES: u64 = 4 << 20;
/// How often the other holders of a job are asked for it before its deadline.
pub const ASK_TRIES: u8 = 3;
/// An acknowledgement is told again to who has not answered after this long, then after twice as long each time (reference, 5.2).
pub const ACK_AGAIN_MS: u64 = 1_000;
/// And at least this often.
pub const ACK_AGAIN_MAX_MS: u64 = 180_000;
/// Jobs that a leaving node looks at in one step,
pub const LEAVING_STEP: u32 = 256;
/// and the pause between two of them, milliseconds.
pub const LEAVING_PAUSE_MS: u64 = 20;
/// New jobs of a shard that are on their way to other nodes since memory is short; beyond it they stay.
pub const EXTERNAL: usize = 16_384;
/// A job that is to go to other nodes is looked at again after this long, milliseconds, then after twice as long each time,
pub const EXTERNAL_AGAIN_MS: u64 = 20;
/// and at least this often.
pub const EXTERNAL_AGAIN_MAX_MS: u64 = 5_000;
/// How often an ADDJOB asks other nodes to hold the job alone before it is content with this node's copy as one of those it wants.
pub const EXTERNAL_TRIES: u32 = 2;
/// Jobs dropped while other nodes held them that a home remembers: those nodes may not have heard.
pub const LEFT: usize = 1 << 16;
/// Jobs that repair looks at in one step.
pub const REPAIR_STEP: u32 = 64;
/// Pause between two steps of repair, milliseconds: it is to leave room for clients.
pub const REPAIR_PAUSE_MS: u64 = 5;
/// Holders of a job at the most: a node count far above any cluster's.
pub const HOLDERS: usize = 1024;
/// Bytes of a frame of the bus that holds several messages: what its receiver decodes in one step.
pub const BUS_BATCH_BYTES: usize = 256 << 10;
/// Bytes of a message of the bus from which on it has a frame of its own, whose body nobody copies.
pub const BUS_LARGE_BYTES: usize = 16 << 10;
/// Bytes of any frame of the bus: a job of the longest request, and room for what else is said of it.
pub const BUS_FRAME_BYTES: usize = MAX_REQUEST_BYTES + (32 << 20);
/// Bytes of a packet of membership: what a probe may have to wait for.
pub const BUS_PACKET_BYTES: usize = 64 << 10;
/// Items of one list on the bus (IDs to delete, queues with consumers); a longer one goes as several messages.
pub const BUS_ITEMS: usize = 4096;
/// Bytes of the text of an error that another node answered.
pub const BUS_ERROR_BYTES: usize = 1024;

/// Jobs of a queue that a node says it can take at a time.
pub const CREDIT: u32 = 4096;
/// A queue asks ahead for its imports of the last second by this.
pub const STREAM_SHARE: u32 = 16;
/// Queues that other nodes may name as those they have consumers for.
pub const INTERESTS: usize = 1 << 20;
/// Queues with consumers that other nodes are told of again at a time,
pub const INTERESTS_AGAIN: usize = 64;
/// and how often that is done, milliseconds: the cost of idle consumers does not grow with their number.
pub const INTERESTS_AGAIN_MS: u64 = 1_000;
/// Queues in which consumers looked in vain that a home remembers,
pub const POLLED_QUEUES: usize = 4096;
/// how soon other nodes are asked again for each, milliseconds,
pub const POLL_AGAIN_MS: u64 = 1_000;
/// and for how many jobs at least.
pub const POLL_CREDIT: u32 = 64;
/// An imported job that nobody took goes to another node after this long, milliseconds.
pub const EXPORT_AGAIN_MS: u64 = 1_000;
/// Jobs that a queue exports in one step.
pub const EXPORT_STEP: usize = 256;

/// Jobs with RETRY 0 of a shard that are on their way to other nodes, or offered to them.
pub const TRANSFERS: usize = 16_384;
/// An offer that was not answered is forgotten after this long or four round trips, milliseconds.
pub const TRANSFER_OFFER_MS: u64 = 1_000;
/// A node that had no room is offered nothing for this long, milliseconds.
pub const TRANSFER_REFUSED_MS: u64 = 500;
/// The target of a transfer is asked for its answer after this long or four round trips, then after twice as long each time,
pub const TRANSFER_ASK_MS: u64 = 1_000;
/// and at least this often, milliseconds.
pub const TRANSFER_ASK_MAX_MS: u64 = 10_000;
/// Transfers that a shard has said are welcome and that may still come; one more, and the oldest has to ask anew.
pub const TRANSFER_WANTS: usize = 16_384;
/// Answers to transfers that a shard keeps: their sources may be away.
pub const TRANSFER_ANSWERS: usize = 65_536;
/// An answer is said again after this long: the source retires it when its own log is synced, about a second later. Then after twice as long each time,
pub const TRANSFER_ANSWER_MS: u64 = 3_000;
/// and at least this often, milliseconds.
pub const TRANSFER_ANSWER_MAX_MS: u64 = 180_000;

/// Acknowledgements of unknown IDs that a shard remembers until all nodes have answered: each names all nodes of the cluster.
pub const DUMMY_ACKS: usize = 16_384;
/// Requests of a shard that wait for other nodes; beyond it only what is here counts.
pub const REMOTE_WORKS: usize = 1024;
/// Questions to other nodes that are open, above which no request begins to wait for more: each may be about `IDS_STEP` IDs.
pub const REMOTE_QUESTIONS: usize = 16_384;
/// Answers to other nodes that a shard remembers, so that a question that comes twice does nothing twice.
pub const REMOTE_ANSWERS: usize = 16_384;
/// A question that was not answered is sent again after this long or four round trips, milliseconds.
pub const ASK_AGAIN_MS: u64 = 200;
/// Pause states that a node that came is told of at a time.
pub const PAUSES_STEP: usize = 64;
/// Queues that were opened whose version is remembered: a node that was away may not know yet.
pub const PAUSES_OPEN: usize = 4096;

/// Longest time that a client may ask for (TTL, RETRY, DELAY): 100 years. 32 bits of seconds hold it.
pub const MAX_SECONDS: u64 = 100 * 365 * 24 * 3600;
/// Longest timeout of a blocking command, in milliseconds; longer ones are cut to it.
pub const MAX_TIMEOUT_MS: u64 = MAX_SECONDS * 1000;

/// A queue without jobs, waiters and pause state is collected after this long, by memory level (reference, 3.6).
pub const IDLE_QUEUE_MS: [u64; 3] = [300_000, 10_000, 2_000];

/// Nodes of a cluster: every shard has a link to each; as many as a record can name holders.
pub const CLUSTER_NODES: usize = 1024;
/// Nodes that a node has known since it started, those that are gone included: their numbers have 16 bits.
pub const PEERS_EVER: usize = 60_000;
/// Nodes whose bans are remembered, also lifted ones.
pub const CLUSTER_BANS: usize = 4096;
/// CLUSTER MEETs, or RESETs and the like that wait for the disk, at a time.
pub const CLUSTER_WAITING: usize = 128;
/// Bytes of a packet of membership: small, so that it is never long on its way.
pub const PACKET_BYTES: usize = 16 << 10;
/// Other nodes that one packet tells of, in turns.
pub const PACKET_NODES: usize = 32;
/// Bans that one packet tells of, in turns.
pub const PACKET_BANS: usize = 64;
/// Bytes of an address or host name (DNS: 255).
pub const HOST_BYTES: usize = 255;

const _: () = {
    assert!(MAX_SECONDS <= u32::MAX as u64, "seconds are kept in 32 bits");
    assert!(OFFER_STEP <= TAKE_STEP);
    assert!(
        (PACKET_NODES + 1) * (HOST_BYTES + 128) + PACKET_BANS * 48 < PACKET_BYTES,
        "the longest packet is not too long"
    );
    assert!(CLUSTER_NODES < PEERS_EVER && PEERS_EVER < 1 << 16);
    assert!(100 / CLIENTS_SHARE <= ONE_CLIENT_PERCENT && ONE_CLIENT_PERCENT < 100);
    assert!(MAX_BULK_BYTES < MAX_REQUEST_BYTES);
    assert!(OUTPUT_HIGH_BYTES <= REPLY_BYTES);
    assert!(
        BUS_FRAME_BYTES <= u32::MAX as usize,
        "a frame's length has 32 bits"
    );
    assert!(BUS_LARGE_BYTES < BUS_BATCH_BYTES && BUS_PACKET_BYTES < BUS_BATCH_BYTES);
    assert!(
        24 * MAX_ARGUMENTS + BUS_BATCH_BYTES < BUS_FRAME_BYTES,
        "all IDs of a request"
    );
    assert!(
        SESSION_PENDING <= u32::MAX as usize / 2,
        "request numbers of a session are compared modulo 2^32"
    );
};

//! What a node knows of the other holders of a job, and what it is about to do because of them.
//!
//! A [`Share`] exists for a job that another node holds too, or was asked to hold. Its timer (`Stock::cluster_timers`) fires when copies
//! are to be sent again, an ADDJOB has waited long enough, or the others are to be asked who has the job.

use smallvec::SmallVec;

use crate::bus::message::Members;
use crate::bus::{PeerNo, Peers};
use crate::clock::Mono;
use crate::id::{JobId, NodeId};
use crate::log::Holder;
use crate::message::Ticket;
use crate::plant::{self, Plant};
use crate::structures::timers::TimerKey;

/// What a share costs beside its job: its record, its timer (24) and what a list longer than two takes, about.
pub const SHARE_BYTES: u64 = size_of::<Share>() as u64 + 24;

/// Another holder of a job, or one that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its store epoch when it confirmed, or was asked.
    pub epoch: u64,
    /// The node.
    pub peer: PeerNo,
    /// It has the job for certain; else it was asked.
    pub confirmed: bool,
    /// It has answered what was asked last: who has the job; of an acknowledged job: it knows.
    pub heard: bool,
}

/// The other holders of a job: one entry for each node.
pub type Others = SmallVec<[Member; 2]>;

/// A job's other holders.
#[derive(Debug)]
pub struct Share {
    /// The job.
    pub job: u32,
    /// Who else has it.
    pub others: Others,
    /// Copies that are still missing.
    pub copying: Option<Box<Copying>>,
    /// When the others are asked next who has the job.
    pub ask_at: Mono,
    /// How often they were asked since its deadline came near.
    pub asked: u8,
    /// This node says when it enters its queue: it added, queued or handed it out last.
    pub mine: bool,
    /// Its deadline was put off by its place among the holders.
    pub ranked: bool,
    /// After a restart: it enters as soon as all others have said that they do not have it.
    pub rejoins: bool,
    /// This node queued it again, and said so: said again to a node that comes back, which may have done the same.
    pub requeued: bool,
    /// It is counted among the jobs whose copies all lie on one host (`Stock::on_one_host`).
    pub on_one_host: bool,
    /// It was imported, and is not exported again before this.
    pub not_before: Mono,
    /// When the others learnt last from when on their own deadlines run.
    pub told_at: Mono,
    /// Its timer.
    pub timer: Option<TimerKey>,
}

/// Copies on their way.
#[derive(Debug)]
pub struct Copying {
    /// The ADDJOB that waits for them; none for an asynchronous one, and for repair.
    pub ticket: Option<Ticket>,
    /// How many other nodes are to have it.
    pub wanted: u16,
    /// REPLICATE was not given: fewer will do when there are fewer nodes.
    pub may_lower: bool,
    /// When the ADDJOB ends without success.
    pub ends_at: Mono,
    /// When what was not confirmed is sent again, and one node more is asked.
    pub again_at: Mono,
    /// How often that was done.
    pub tries: u32,
    /// This node's copy does not count: all are to lie on others, as long as they can (`external`).
    pub external: bool,
    /// There are enough, all on one host: only nodes on other hosts are asked, until one of them has it.
    pub apart: bool,
}

impl Share {
    /// A share without other holders yet.
    pub fn new(job: u32, now: Mono, mine: bool) -> Self {
        Self {
            job,
            others: Others::new(),
            copying: None,
            ask_at: Mono::NEVER,
            asked: 0,
            mine,
            ranked: false,
            rejoins: false,
            requeued: false,
            on_one_host: false,
            not_before: Mono::default(),
            told_at: now,
            timer: None,
        }
    }

    /// When its timer is due at the latest.
    pub fn deadline(&self) -> Mono {
        let copying = self.copying.as_ref();
        let copies = copying.map_or(Mono::NEVER, |copying| copying.ends_at.min(copying.again_at));
        copies.min(self.ask_at)
    }

    /// How many others have it for certain.
    pub fn confirmed(&self) -> u16 {
        self.others.iter().filter(|member| member.confirmed).count() as u16
    }

    /// The ADDJOB that waits.
    pub fn ticket(&self) -> Option<Ticket> {
        self.copying.as_ref().and_then(|copying| copying.ticket)
    }
}

/// Notes that a node has a job for certain, or was asked. Whether that is news.
pub fn note(others: &mut Others, peer: PeerNo, epoch: u64, confirmed: bool) -> bool {
    match others.iter_mut().find(|member| member.peer == peer) {
        Some(member) if confirmed && !(member.confirmed && member.epoch >= epoch) => {
            member.epoch = epoch;
            member.confirmed = true;
            true
        }
        Some(_) => false,
        None => {
            let heard = false;
            others.push(Member {
                epoch,
                peer,
                confirmed,
                heard,
            });
            true
        }
    }
}

/// Notes all that a message names, this node left out, and nodes that are not known. Whether any is news.
pub fn note_all(others: &mut Others, peers: &Peers, members: &Members) -> bool {
    let mut news = false;
    let confirmed = members.confirmed.iter().map(|holder| (holder, true));
    let asked = members.asked.iter().map(|holder| (holder, false));
    for (holder, confirmed) in confirmed.chain(asked) {
        if let Some(peer) = peers.find(NodeId::from_bytes(holder.node)) {
            news |= note(others, peer, holder.epoch, confirmed);
        }
    }
    news
}

/// All holders as a message names them; this node is one of them unless it has dropped the job.
pub fn members(others: &Others, peers: &Peers, with_me: bool) -> Members {
    let holder = |member: &Member| peers.holder(member.peer, member.epoch);
    let me = with_me.then(|| peers.myself());
    let skipped = usize::from(plant::active(Plant::SkippedHolder));
    let confirmed = others
        .iter()
        .filter(|member| member.confirmed)
        .skip(skipped)
        .map(holder);
    let asked = others.iter().filter(|member| !member.confirmed).map(holder);
    Members {
        confirmed: me.into_iter().chain(confirmed).collect(),
        asked: asked.collect(),
    }
}

/// The others as a record names them: the top bit of the epoch marks those that have not confirmed.
pub fn recorded(others: &Others, peers: &Peers) -> Vec<Holder> {
    let record = |member: &Member| {
        let mark = if member.confirmed { 0 } else { ASKED };
        peers.holder(member.peer, member.epoch | mark)
    };
    others.iter().map(record).collect()
}

/// Marks a holder in a record as one that was asked and has not confirmed.
pub const ASKED: u64 = 1 << 63;

/// A node's rank for a job: the lowest one wins every conflict, on every node alike.
///
/// A hash (FNV-1a, finished as MurmurHash3 does) of the node's ID and of the job ID's 22 last random characters: the two before them are
/// the slot, and would make one node win for a whole queue.
pub fn rank(node: &NodeId, id: &JobId) -> u64 {
    let bytes = id.as_bytes();
    let chance = [bytes[5] & 0x0f];
    let all = node.as_bytes().iter().chain(&chance).chain(&bytes[6..22]);
    let hash = all.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// This node's place by rank among the holders that can be reached, itself included: 0 is the first.
pub fn place(others: &Others, peers: &Peers, id: &JobId) -> u64 {
    let mine = rank(&peers.node, id);
    let live = others
        .iter()
        .filter(|member| member.confirmed && peers.is_reachable(member.peer));
    live.filter(|member| rank(&peers.peer(member.peer).id, id) < mine)
        .count() as u64
}

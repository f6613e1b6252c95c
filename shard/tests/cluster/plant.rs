//! Mistakes that are made on purpose, to prove that the checks see them. They are made beside the product: in what the network
//! carries, and in what nodes say of themselves.

use shard::bus::BusMessage;
use shard::bus::message::Members;

use crate::support::Chance;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    None,
    /// An acknowledgement reaches a holder, is answered, and forgotten: the job stays there, or comes again.
    LostAck,
    /// A node that lost everything says that it is the one it was: nobody repairs, and a later death takes the last copy.
    SameEpoch,
    /// A copy is confirmed, and not kept.
    LostCopy,
    /// A copy goes as soon as its job was added, before anybody has acknowledged it.
    EarlyDelete,
    /// A node takes a job that is handed out at most once, and says that it did not.
    WrongAnswer,
}

/// What becomes of a message on its way.
pub struct Carried {
    /// What goes on.
    pub on: Option<BusMessage>,
    /// What comes back, as if the receiver had said it.
    pub back: Option<BusMessage>,
}

impl Plant {
    pub fn carry(self, chance: &mut Chance, message: BusMessage) -> Carried {
        let (on, back) = match (self, message) {
            (Self::LostAck, BusMessage::SetAck { id, .. }) if chance.percent(20) => {
                let members = Members::default();
                let known = true;
                (None, Some(BusMessage::GotAck { id, known, members }))
            }
            (Self::LostCopy, BusMessage::Copy { copy, .. }) if chance.percent(20) => {
                (None, Some(BusMessage::Copied { id: copy.id }))
            }
            (Self::EarlyDelete, BusMessage::Holders { id, .. }) if chance.percent(20) => {
                (Some(BusMessage::Delete { ids: vec![id] }), None)
            }
            (Self::WrongAnswer, BusMessage::TransferAnswer { id, hop, .. }) if chance.percent(20) => {
                let taken = false;
                (Some(BusMessage::TransferAnswer { id, hop, taken }), None)
            }
            (_, message) => (Some(message), None),
        };
        Carried { on, back }
    }
}

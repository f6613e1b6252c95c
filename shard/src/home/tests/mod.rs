//! The rules of a home, one by one, in virtual time. Every step is followed by the check of the whole state.

mod acknowledgements;
mod cluster;
mod external;
mod flush;
mod holders;
mod hosts;
mod jobs;
mod journal;
mod lines;
mod look;
mod memory;
mod offers;
mod pause;
mod pauses;
mod queues;
mod random;
mod remote;
mod transfers;
mod transfers_logged;
mod waiting;

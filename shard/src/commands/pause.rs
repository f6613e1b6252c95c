//! PAUSE: close the ways into and out of a queue.
//!
//! `PAUSE queue word [word ...]` answers the state after it. `in`, `out`, `all` and `none` build a new state, from left to
//! right, beginning with none of them; it replaces the old one. `state` and `bcast` alone change nothing. The queue is created
//! when the new state closes anything. What waits goes on, in order and in steps, once its way is open (`sessions.md`). With `bcast`
//! all nodes that can be reached have the new state too when this is answered; an error names those that did not answer, which will
//! learn of it (`home/cluster/pauses.rs`).

use super::view::PauseState;
use super::{Plan, Request};
use crate::clock::Mono;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::message::Answer;
use crate::session::Session;
use crate::slot::Slot;
use crate::wire::{Args, Blob};

/// A PAUSE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The queue.
    pub queue: Blob,
    /// The new state; `None` leaves the old one.
    pub state: Option<PauseState>,
    /// Other nodes are told.
    pub broadcast: bool,
}

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let pause = parse(args)?;
    Ok(Plan::Home {
        slot: Slot::of_queue(&args[1]),
        request: Request::Pause(pause),
    })
}

fn parse(args: &Args<'_>) -> Result<Pause, CommandError> {
    let mut pause = Pause {
        queue: args.blob(1),
        state: None,
        broadcast: false,
    };
    for word in args.iter().skip(2) {
        let old = pause.state.unwrap_or_default();
        match word.to_ascii_lowercase().as_slice() {
            b"in" => pause.state = Some(PauseState { input: true, ..old }),
            b"out" => pause.state = Some(PauseState { output: true, ..old }),
            b"all" => {
                pause.state = Some(PauseState {
                    input: true,
                    output: true,
                })
            }
            b"none" => pause.state = Some(PauseState::default()),
            b"state" => {}
            b"bcast" => pause.broadcast = true,
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(pause)
}

/// Replaces the state.
pub(crate) fn apply(home: &mut Home, now: Mono, pause: Pause) -> Answer {
    match (home.find_queue(&pause.queue), pause.state) {
        (Some(key), None) => Answer::Pause(home.queue(key).pause),
        (None, None) => Answer::Pause(PauseState::default()),
        (None, Some(state)) if !state.any() => {
            let version = home.new_pause_version(pause.broadcast);
            home.stays_open(&pause.queue, version);
            Answer::Pause(state)
        }
        (_, Some(state)) => {
            let key = home.find_or_create_queue(now, &pause.queue);
            let version = home.new_pause_version(pause.broadcast);
            home.set_pause(now, key, state, version);
            Answer::Pause(state)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    #[test]
    fn words_build_a_state_from_left_to_right() {
        for (words, state) in [
            ("in", Some("in")),
            ("OUT", Some("out")),
            ("in out", Some("all")),
            ("all", Some("all")),
            ("all none", Some("none")),
            ("all none in", Some("in")),
            ("bcast in state", Some("in")),
            ("state", None),
            ("bcast", None),
        ] {
            let all: Vec<&str> = ["PAUSE", "q"].into_iter().chain(words.split(' ')).collect();
            let pause = with_args(&all, |args| parse(&args)).unwrap();
            assert_eq!(pause.state.map(PauseState::word), state, "{words}");
            assert_eq!(pause.broadcast, words.contains("bcast"));
        }
        let wrong = with_args(&["PAUSE", "q", "in", "both"], |args| parse(&args));
        assert_eq!(wrong, Err(CommandError::Syntax));
    }
}

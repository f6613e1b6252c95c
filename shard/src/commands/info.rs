//! INFO [section]: what the node is and does, all shards together, as text (reference, 10.1).
//!
//! Sections and fields are those of the original, by name and in order; fields of our own stand behind them, and a section
//! `Shards` has a line for each shard, and `Cluster` tells of the other nodes. Without a section, or with `default`, all but Commandstats; `all` and `everything` are
//! all; an unknown section is an empty text.

mod report;

use super::view::Part;
use super::{Finish, Gather, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::input::{ProcessFigures, Question, Told};
use crate::session::Session;
use crate::stats::ShardStats;
use crate::wire::Args;
use report::Report;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    if args.len() > 2 {
        return Err(CommandError::Syntax);
    }
    Ok(Plan::Gather {
        ask: Gather::Stats,
        question: Some(Question::Process),
        finish,
    })
}

fn finish(call: &mut Finish<'_>) {
    let section = call
        .args
        .get(1)
        .map_or_else(|| "default".to_owned(), |section| words::lowercase(section));
    let shards: Vec<ShardStats> = std::mem::take(&mut call.parts)
        .into_iter()
        .filter_map(|part| match part {
            Part::Stats(stats) => Some(*stats),
            _ => None,
        })
        .collect();
    let process = match call.told.take() {
        Some(Told::Process(process)) => *process,
        _ => ProcessFigures::default(),
    };
    let core = &*call.core;
    let report = Report::new(
        &core.facts,
        &core.settings,
        call.now,
        &shards,
        process,
        &core.home.peers,
    );
    let text = report.text(&section);
    call.reply().bulk(text);
}

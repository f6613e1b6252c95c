//! Which generation of the data folder counts, and the steps from one to the next: decisions only, the server performs them.
//!
//! ```text
//! dir/CURRENT            "gen-7 shards 4 crc 1a2b3c4d\n"
//! dir/gen-7/shard-000-0000000000000001.log ...
//! dir/CURRENT.off        what CURRENT was when `appendonly` was switched off; never loaded by itself
//! ```
//!
//! What must hold: `CURRENT` names a generation only when all of it is synced; it changes by one rename; a generation that it does not
//! name is discarded, and only after `CURRENT` was read and understood.

/// The name of the file that names the generation.
pub const CURRENT: &str = "CURRENT";
/// Its name while `appendonly` is off.
pub const CURRENT_OFF: &str = "CURRENT.off";
const CURRENT_NEW: &str = "CURRENT.new";

/// What `CURRENT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// The generation.
    pub generation: u64,
    /// How many shards wrote it.
    pub shards: u16,
}

impl Current {
    /// The text of the file.
    pub fn text(self) -> String {
        let words = format!("gen-{} shards {}", self.generation, self.shards);
        let sum = crc32c::crc32c(words.as_bytes());
        format!("{words} crc {sum:08x}\n")
    }

    /// Reads the file; `None` when it is not what was written.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_ascii_whitespace();
        let generation = words.next()?.strip_prefix("gen-")?.parse().ok()?;
        let shards = words.nth(1)?.parse().ok().filter(|&shards| shards > 0)?;
        let current = Self { generation, shards };
        (current.text() == text).then_some(current)
    }

    /// The folder of a generation.
    pub fn folder(generation: u64) -> String {
        format!("gen-{generation}")
    }

    /// The generation that a folder's name says; `None` when it is no such name.
    pub fn generation_of(folder: &str) -> Option<u64> {
        let number = folder.strip_prefix("gen-")?.parse().ok()?;
        (Self::folder(number) == folder).then_some(number)
    }
}

/// What a start does with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPlan {
    /// No log is kept, and none is there.
    Nothing,
    /// There is a log and `appendonly` is off: [`switch_off`], then start without.
    SwitchOff,
    /// Start an empty log in this generation.
    Fresh(Current),
    /// Recover it and go on in it.
    Load(Current),
    /// Recover `from` and write all that lives to `to` before serving.
    Reshard {
        /// What is there.
        from: Current,
        /// What is to be.
        to: Current,
    },
    /// `CURRENT` is not what was written: stop, and say that it must be looked at.
    Unreadable,
}

/// What to do at a start: `names` are those in the data folder, `current` is what `CURRENT` holds.
pub fn plan_start(names: &[String], current: Option<&[u8]>, appendonly: bool, shards: u16) -> StartPlan {
    let newest = names.iter().filter_map(|name| Current::generation_of(name)).max();
    let next = Current {
        generation: newest.map_or(1, |newest| newest + 1),
        shards,
    };
    match (current.map(Current::parse), appendonly) {
        (Some(None), _) => StartPlan::Unreadable,
        (None, false) => StartPlan::Nothing,
        (None, true) => StartPlan::Fresh(next),
        (Some(Some(_)), false) => StartPlan::SwitchOff,
        (Some(Some(from)), true) if from.shards == shards => StartPlan::Load(from),
        (Some(Some(from)), true) => StartPlan::Reshard { from, to: next },
    }
}

/// A step; each ends before the next begins, and an error ends the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those in the data folder")]
pub enum SwitchStep {
    SyncFolder(String),
    WriteAndSync { name: String, text: String },
    Rename { from: String, to: String },
    DeleteFolder(String),
}

/// Makes `to` the generation that counts. All its segments are synced before. The old one, if any, is deleted last.
pub fn switch_plan(from: Option<Current>, to: Current) -> Vec<SwitchStep> {
    let mut steps = vec![
        SwitchStep::SyncFolder(Current::folder(to.generation)),
        SwitchStep::SyncFolder(".".into()),
        SwitchStep::WriteAndSync {
            name: CURRENT_NEW.into(),
            text: to.text(),
        },
        SwitchStep::Rename {
            from: CURRENT_NEW.into(),
            to: CURRENT.into(),
        },
        SwitchStep::SyncFolder(".".into()),
    ];
    if let Some(from) = from {
        steps.push(SwitchStep::DeleteFolder(Current::folder(from.generation)));
        steps.push(SwitchStep::SyncFolder(".".into()));
    }
    steps
}

/// Puts the log aside, so that no later start loads it by itself.
pub fn switch_off() -> Vec<SwitchStep> {
    let (from, to) = (CURRENT.into(), CURRENT_OFF.into());
    vec![
        SwitchStep::Rename { from, to },
        SwitchStep::SyncFolder(".".into()),
    ]
}

/// Generations to delete once `current` is known to count. What `off` names stays, for people to look at.
pub fn discard_plan(names: &[String], current: Current, off: Option<Current>) -> Vec<SwitchStep> {
    let kept = [Some(current), off].map(|kept| kept.map(|kept| kept.generation));
    let others = names.iter().filter(|name| {
        let generation = Current::generation_of(name);
        generation.is_some() && !kept.contains(&generation)
    });
    others
        .map(|name| SwitchStep::DeleteFolder(name.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Current = Current {
        generation: 7,
        shards: 4,
    };

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn current_is_read_back_and_nothing_else_is() {
        assert_eq!(Current::parse(OLD.text().as_bytes()), Some(OLD));
        for text in [
            "",
            "gen-7",
            "gen-7 shards 4 crc 00000000\n",
            "gen-7 shards 0 crc 1\n",
            "gen-7 shards 4",
        ] {
            assert_eq!(Current::parse(text.as_bytes()), None, "{text}");
        }
        let text = OLD.text().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Current::parse(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn every_start_has_its_plan() {
        let (found, text) = (names(&["gen-7", "gen-8", "gen-x", "notes"]), OLD.text());
        let next = Current {
            generation: 9,
            shards: 3,
        };
        let plan =
            |current: Option<&str>, on, shards| plan_start(&found, current.map(str::as_bytes), on, shards);
        assert_eq!(plan(None, false, 3), StartPlan::Nothing);
        assert_eq!(plan(None, true, 3), StartPlan::Fresh(next));
        assert_eq!(plan(Some(&text), true, 4), StartPlan::Load(OLD));
        assert_eq!(
            plan(Some(&text), true, 3),
            StartPlan::Reshard { from: OLD, to: next }
        );
        assert_eq!(plan(Some(&text), false, 3), StartPlan::SwitchOff);
        assert_eq!(plan(Some("gen"), true, 3), StartPlan::Unreadable);
        assert_eq!(plan(Some("gen"), false, 3), StartPlan::Unreadable);
        assert_eq!(
            plan_start(&[], None, true, 3),
            StartPlan::Fresh(Current {
                generation: 1,
                shards: 3
            })
        );
    }

    #[test]
    fn a_crash_at_any_step_of_a_switch_leaves_one_whole_generation() {
        let to = Current {
            generation: 8,
            shards: 3,
        };
        let steps = switch_plan(Some(OLD), to);
        for crash in 0..=steps.len() {
            let (mut current, mut folders) = (OLD, vec![7, 8]);
            for step in &steps[..crash] {
                match step {
                    SwitchStep::Rename { .. } => current = to,
                    SwitchStep::DeleteFolder(name) => {
                        folders.retain(|&number| Current::folder(number) != *name)
                    }
                    SwitchStep::SyncFolder(_) | SwitchStep::WriteAndSync { .. } => {}
                }
            }
            assert!(folders.contains(&current.generation), "after {crash} steps");
        }
        let deletes = discard_plan(&names(&["gen-7", "gen-8", "gen-6", "notes"]), to, Some(OLD));
        assert_eq!(deletes, [SwitchStep::DeleteFolder("gen-6".into())]);
    }
}

//! What the settings of the log promise, as far as clients know which of them hold.

/// The promises of one life of the node.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// Since when whatever is told is durable.
    always_since: Option<u64>,
    /// In this life nothing may have had to be synced before it was told.
    may_be_no: bool,
    /// Commands to leave `always` that are not answered: they may take effect at any time.
    relaxing: u32,
    /// How many of them were sent.
    relaxed: u64,
    /// Commands to end the log of which it is not known whether they did, or will.
    offs: u32,
}

impl Promises {
    /// What a node promises that begins to serve at this moment.
    pub fn of_start(appendfsync: &str, moment: u64) -> Self {
        Self {
            always_since: (appendfsync == "always").then_some(moment),
            may_be_no: appendfsync == "no",
            ..Self::default()
        }
    }

    /// CONFIG SET of this to that is sent. What [`answered`](Self::answered) wants of it.
    pub fn sent(&mut self, name: &str, value: &str) -> u64 {
        match (name, value) {
            ("appendonly", "no") => self.offs += 1,
            ("appendfsync", "always") => {}
            ("appendfsync", _) => {
                self.always_since = None;
                self.may_be_no |= value == "no";
                self.relaxing += 1;
                self.relaxed += 1;
            }
            _ => {}
        }
        // While another is under way nobody knows which comes last.
        if self.relaxing > 0 { u64::MAX } else { self.relaxed }
    }

    /// It was answered. One whose client is gone never is, and stays under way for the rest of the life.
    pub fn answered(&mut self, name: &str, value: &str, serial: u64, done: bool, moment: u64) {
        match (name, value) {
            ("appendonly", "no") if done => self.offs -= 1,
            ("appendfsync", "always") if done && serial == self.relaxed => self.always_since = Some(moment),
            ("appendfsync", "always") => {}
            ("appendfsync", _) => self.relaxing -= 1,
            _ => {}
        }
    }

    /// Since when whatever is told is durable, if that is known.
    pub fn always_since(&self) -> Option<u64> {
        self.always_since
    }

    /// Whether what leaves may not be synced.
    pub fn may_be_no(&self) -> bool {
        self.may_be_no
    }

    /// Whether somebody asked for an end of the log, and was not told what became of it.
    pub fn off_asked(&self) -> bool {
        self.offs > 0
    }
}

//! Chance for the IDs of new jobs, drawn some IDs ahead.
//!
//! Where an ID goes in the ID map is as random as the ID: with millions of jobs each insert is a cache miss of its own, a
//! quarter of the cost of an ADDJOB (measured). When the next sixteen are known together, their places are looked at
//! together, and the misses overlap.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The random part of an ID.
pub type Random = [u8; 18];

const AHEAD: usize = 16;

/// A source of chance and what was drawn from it ahead.
pub struct Chance {
    source: ChaCha8Rng,
    coming: [Random; AHEAD],
    /// How many of `coming` are used.
    used: usize,
}

impl Chance {
    /// Chance that follows from a seed.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            source: ChaCha8Rng::from_seed(seed),
            coming: [[0; 18]; AHEAD],
            used: AHEAD,
        }
    }

    /// The random part of the next ID. `foresee` is told of those to come whenever they are drawn.
    pub fn take(&mut self, foresee: impl FnOnce(&[Random])) -> Random {
        if self.used == AHEAD {
            self.source.fill_bytes(self.coming.as_flattened_mut());
            self.used = 0;
            foresee(&self.coming);
        }
        let random = self.coming[self.used];
        self.used += 1;
        random
    }

    /// A seed for something else.
    pub fn seed(&mut self) -> u64 {
        self.source.next_u64()
    }
}

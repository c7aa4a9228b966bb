//! Acknowledged state of one item: its states, when each began, and when one was promised.

use std::sync::{Arc, Mutex};
use weir_sim::SimWorld;

/// A moment of the recording.
pub type When = u64;

/// States of one item in order.
#[derive(Clone, Debug)]
pub struct States<T> {
    /// States with the moment at which the change began.
    states: Vec<(When, T)>,
    /// Promises: from this moment on, the item has the state with this number or a later one.
    promised: Vec<(When, usize)>,
}

impl<T> States<T> {
    pub fn new(when: When, first: T) -> Self {
        States { states: vec![(when, first)], promised: Vec::new() }
    }

    pub fn last(&self) -> &T {
        &self.states[self.states.len() - 1].1
    }

    /// Number of the last state, which a commit that begins now makes stable.
    pub fn number(&self) -> usize {
        self.states.len() - 1
    }

    /// Records a change to `state` that began at `when`.
    pub fn push(&mut self, when: When, state: T) {
        self.states.push((when, state));
    }

    /// Records that state `number` was acknowledged as stable at `when`.
    pub fn promise(&mut self, when: When, number: usize) {
        self.promised.push((when, number));
    }

    /// States of which one must be found after a cut at `cut`, youngest first; none if the item did not exist.
    pub fn allowed(&self, cut: When) -> impl Iterator<Item = &T> {
        let first = self.promised.iter().filter(|(when, _)| *when <= cut).map(|(_, n)| *n).max().unwrap_or(0);
        self.states[first..].iter().filter(move |(began, _)| *began <= cut).rev().map(|(_, state)| state)
    }

    /// All states.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.states.iter().map(|(_, state)| state)
    }

    /// Whether a state was promised before the cut.
    pub fn is_promised(&self, cut: When) -> bool {
        self.promised.iter().any(|(when, _)| *when <= cut)
    }
}

/// Acknowledged state, shared by a client and the judge.
pub type Shared<T> = Arc<Mutex<T>>;

/// Clock that counts the moments of the recorded world.
#[derive(Clone)]
pub struct Moments(pub SimWorld);

impl Moments {
    pub fn now(&self) -> When {
        self.0.recorded()
    }
}

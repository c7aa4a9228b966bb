//! What a client knows of one thing: its states, when each began, and from when on one was promised.

use std::sync::{Arc, Mutex};
use weir_sim::SimWorld;

/// A moment of the recording.
pub type When = u64;

/// The states that one thing went through.
#[derive(Clone, Debug)]
pub struct States<T> {
    /// Each with the moment at which its change began.
    states: Vec<(When, T)>,
    /// States that were promised to be there, or later ones, with the moment of the promise.
    promised: Vec<(When, usize)>,
}

impl<T> States<T> {
    pub fn new(when: When, first: T) -> Self {
        States { states: vec![(when, first)], promised: Vec::new() }
    }

    pub fn last(&self) -> &T {
        &self.states[self.states.len() - 1].1
    }

    /// The number of the last state: what a promise that is asked for now is about.
    pub fn number(&self) -> usize {
        self.states.len() - 1
    }

    /// A change that began at `when` leads to this state.
    pub fn push(&mut self, when: When, state: T) {
        self.states.push((when, state));
    }

    /// At `when`, state `number` was said to be stable.
    pub fn promise(&mut self, when: When, number: usize) {
        self.promised.push((when, number));
    }

    /// The states of which one must be there after a cut at `cut`, youngest first; none if the thing had not begun.
    pub fn allowed(&self, cut: When) -> impl Iterator<Item = &T> {
        let first = self.promised.iter().filter(|(when, _)| *when <= cut).map(|(_, n)| *n).max().unwrap_or(0);
        self.states[first..].iter().filter(move |(began, _)| *began <= cut).rev().map(|(_, state)| state)
    }

    /// All states.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.states.iter().map(|(_, state)| state)
    }

    /// Whether anything was promised by then.
    pub fn is_promised(&self, cut: When) -> bool {
        self.promised.iter().any(|(when, _)| *when <= cut)
    }
}

/// Knowledge that a client shares with its judge.
pub type Shared<T> = Arc<Mutex<T>>;

/// The recorded world's clock of moments.
#[derive(Clone)]
pub struct Moments(pub SimWorld);

impl Moments {
    pub fn now(&self) -> When {
        self.0.recorded()
    }
}

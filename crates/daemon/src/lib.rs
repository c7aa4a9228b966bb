//! Ties pools to the protocols that serve them.

//! Network Block Device server.

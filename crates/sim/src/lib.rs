//! The seeded simulator: virtual time, simulated disks with faults, canary.

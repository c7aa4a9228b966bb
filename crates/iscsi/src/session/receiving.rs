//! The data of one command, as they arrive.

use bytes::BytesMut;
use std::collections::VecDeque;

/// A sequence of data that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Target transfer tag.
    pub ttt: u32,
    /// Offset of its end.
    pub end: usize,
    /// Number of its next unit.
    pub data_sn: u32,
}

/// Data that arrive in order.
#[derive(Debug)]
pub struct Receiving {
    /// The data that have arrived.
    pub buffer: BytesMut,
    /// Number of bytes that the command needs and the initiator has.
    pub wanted: usize,
    /// Number of bytes that have arrived or are being read.
    pub arrived: usize,
    /// Number of the next unsolicited unit, while such units follow.
    pub unsolicited: Option<u32>,
    /// Sequences that were asked for, in order.
    pub bursts: VecDeque<Burst>,
    /// Offset up to which data was asked for.
    pub requested: usize,
    /// Whether there is memory for all of the data.
    pub has_memory: bool,
    /// Whether a unit was out of order: the command fails when the sequences have ended.
    pub is_broken: bool,
}

impl Receiving {
    /// Whether everything that is wanted has arrived.
    pub fn is_complete(&self) -> bool {
        self.unsolicited.is_none() && self.arrived >= self.wanted
    }

    /// Whether the command fails now: a unit was out of order, and no further one is announced.
    pub fn has_failed(&self) -> bool {
        self.is_broken && self.unsolicited.is_none() && self.bursts.is_empty()
    }

    /// Records a unit that is out of order, or that follows such a unit. Its data are not kept.
    pub fn skip(&mut self, unit: Unit) {
        self.is_broken = true;
        self.buffer = BytesMut::new();
        match unit.ttt {
            _ if !unit.is_final => {}
            None => self.unsolicited = None,
            Some(ttt) => self.bursts.retain(|burst| burst.ttt != ttt),
        }
    }

    /// Records a unit of `len` bytes at `offset` with these tag and number.
    ///
    /// # Errors
    /// The unit is not the one that comes next.
    pub fn unit(&mut self, unit: Unit, first_burst: usize) -> Result<(), &'static str> {
        let Unit { ttt, data_sn, offset, len, is_final } = unit;
        if offset != self.arrived {
            return Err("a data unit is out of order");
        }
        let end = offset + len;
        match ttt {
            None => {
                let expected = self.unsolicited.ok_or("unsolicited data that was not announced")?;
                if data_sn != expected || end > first_burst {
                    return Err("unsolicited data beyond the first burst, or out of order");
                }
                self.unsolicited = if is_final { None } else { Some(expected + 1) };
                self.requested = self.requested.max(end);
            }
            Some(ttt) => {
                let burst = self.bursts.front_mut().filter(|burst| burst.ttt == ttt);
                let burst = burst.ok_or("data that was not asked for")?;
                if data_sn != burst.data_sn || end > burst.end {
                    return Err("a data unit is out of order");
                }
                burst.data_sn += 1;
                if is_final != (end == burst.end) {
                    return Err("a sequence of data is shorter or longer than it says");
                }
                if is_final {
                    self.bursts.pop_front();
                }
            }
        }
        self.arrived = end;
        debug_assert!(self.arrived <= self.requested, "{} bytes of {}", self.arrived, self.requested);
        Ok(())
    }
}

/// A Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Tag of its sequence; `None` for unsolicited data.
    pub ttt: Option<u32>,
    /// Number in the sequence.
    pub data_sn: u32,
    /// Offset of its data in the command's.
    pub offset: usize,
    /// Length of its data.
    pub len: usize,
    /// Whether it is the last one of its sequence.
    pub is_final: bool,
}

//! Progress of freeing destroyed datasets in the background (`freeing`).

use weir_machine::Nanos;

/// Progress of freeing destroyed datasets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freeing {
    /// Bytes that wait to be freed.
    pub left_bytes: u64,
    /// Bytes freed since something waits.
    pub freed_bytes: u64,
    /// Time since then, in nanoseconds.
    pub active_ns: u64,
    began: Nanos,
}

impl Freeing {
    /// The time that the rest takes at the speed so far, in seconds; `None` if nothing was freed yet.
    pub fn left_s(&self) -> Option<u64> {
        let ns = u128::from(self.left_bytes) * u128::from(self.active_ns);
        let s = ns.checked_div(u128::from(self.freed_bytes))? / 1_000_000_000;
        Some(u64::try_from(s).unwrap_or(u64::MAX))
    }

    /// Whether something waits to be freed.
    pub(crate) fn is_in_progress(&self) -> bool {
        self.left_bytes > 0
    }

    /// After a txg, `left_bytes` wait to be freed. A dataset that is destroyed meanwhile adds to them.
    pub(crate) fn update(&mut self, left_bytes: u64, now: Nanos) {
        if left_bytes == 0 {
            *self = Freeing::default();
            return;
        }
        if self.left_bytes == 0 {
            *self = Freeing { left_bytes, began: now, ..Freeing::default() };
            return;
        }
        // More than before: another dataset was destroyed in this txg.
        self.freed_bytes += self.left_bytes.saturating_sub(left_bytes);
        self.left_bytes = left_bytes;
        self.active_ns = now.ns_since(self.began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_speed_so_far() {
        let second = |n: u64| Nanos(n * 1_000_000_000);
        let mut freeing = Freeing::default();
        freeing.update(1000, second(10));
        assert_eq!((freeing.left_bytes, freeing.left_s()), (1000, None));
        freeing.update(750, second(15));
        assert_eq!((freeing.freed_bytes, freeing.left_s()), (250, Some(15)));
        freeing.update(1500, second(20));
        assert_eq!((freeing.freed_bytes, freeing.left_bytes), (250, 1500), "another dataset was destroyed");
        freeing.update(0, second(25));
        assert_eq!(freeing, Freeing::default());
    }
}

use tonic::Code;

use crate::{MeshError, stubs::Event};

/// Where a reader is in a log: the next position to read. Positions are dense, from 1.
pub(crate) struct Cursor {
    pub(crate) next: i64,
}

impl Cursor {
    pub(crate) fn new(start: i64) -> Self {
        Self { next: start.max(1) }
    }

    /// Returns what was not seen yet, and moves on behind it. What comes twice is dropped; a gap is an error behind that.
    pub(crate) fn news(&mut self, events: Vec<Event>) -> (Vec<Event>, Option<MeshError>) {
        let mut fresh = Vec::with_capacity(events.len());
        for event in events {
            if event.position > self.next {
                let text = format!("event {} is missing: {} came instead", self.next, event.position);
                let mut gap = MeshError::new(Code::DataLoss, "LOG_INVALID", text);
                gap.metadata.insert("position".into(), self.next.to_string());
                return (fresh, Some(gap));
            }
            if event.position == self.next {
                self.next += 1;
                fresh.push(event);
            }
        }
        (fresh, None)
    }
}

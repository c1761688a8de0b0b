use std::time::{Duration, Instant};

use crate::MeshError;

/// Between two tries: doubled from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Waits between tries, until they have failed for all of its patience on end.
pub(crate) struct Endurance {
    patience: Duration,
    pause: Duration,
    gives_up: Option<Instant>,
}

impl Endurance {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, pause: FIRST_PAUSE, gives_up: None }
    }

    /// Begins anew: something worked.
    pub(crate) fn renew(&mut self) {
        *self = Self::new(self.patience);
    }

    /// Waits for the next try. Returns the problem of the last one when there is to be none.
    pub(crate) async fn wait(&mut self, problem: MeshError) -> Result<(), MeshError> {
        let gives_up = *self.gives_up.get_or_insert_with(|| Instant::now() + self.patience);
        if Instant::now() + self.pause > gives_up {
            return Err(problem);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        Ok(())
    }
}

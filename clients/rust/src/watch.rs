use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tonic::{Code, Streaming};

use crate::{
    MeshError, Session,
    cursor::Cursor,
    endurance::Endurance,
    stubs::{Event, Preview, WatchEventsRequest, WatchEventsResponse},
};

/// A stream that stood so long was a good one, even if it had nothing to say.
const HEALTHY_AFTER: Duration = Duration::from_secs(5);

/// What a watcher is told next: an event, or a piece of one to come.
#[derive(Clone, Debug)]
pub enum Told {
    Event(Box<Event>),
    Preview(Preview),
}

/// Follows a session's log through broken links. Dropping it ends the stream.
pub struct Watch {
    session: Session,
    previews: bool,
    cursor: Cursor,
    endurance: Endurance,
    opened: Instant,
    stream: Option<Streaming<WatchEventsResponse>>,
    waiting: VecDeque<Told>,
    gap: Option<MeshError>,
}

impl Watch {
    pub(crate) fn new(session: Session, start: i64, previews: bool) -> Self {
        let endurance = Endurance::new(session.mesh.patience);
        let cursor = Cursor::new(start);
        let opened = Instant::now();
        Self { session, previews, cursor, endurance, opened, stream: None, waiting: VecDeque::new(), gap: None }
    }

    /// Waits for what is told next. Fails when the mesh refuses, or was away for as long as the client has patience.
    pub async fn next(&mut self) -> Result<Told, MeshError> {
        loop {
            if let Some(told) = self.waiting.pop_front() {
                return Ok(told);
            }
            if let Some(gap) = self.gap.take() {
                return Err(gap);
            }
            match self.page().await {
                Ok(page) => {
                    self.endurance.renew();
                    let (events, gap) = self.cursor.news(page.events);
                    self.waiting.extend(events.into_iter().map(|event| Told::Event(Box::new(event))));
                    self.waiting.extend(page.previews.into_iter().map(Told::Preview));
                    self.gap = gap;
                }
                Err(problem) => self.mend(problem).await?,
            }
        }
    }

    /// Reads the stream's next message; opens the stream first where there is none.
    async fn page(&mut self) -> Result<WatchEventsResponse, MeshError> {
        if self.stream.is_none() {
            self.opened = Instant::now();
            let request = WatchEventsRequest {
                session_id: self.session.id.clone(),
                start_position: self.cursor.next,
                previews: self.previews,
            };
            let mesh = &self.session.mesh;
            let opened = mesh.service.clone().watch_events(mesh.signed(request)).await?;
            self.stream = Some(opened.into_inner());
        }
        let stream = self.stream.as_mut().expect("it was opened");
        stream.message().await?.ok_or_else(|| MeshError::new(Code::Unavailable, "", "the stream ended"))
    }

    /// Waits until it is worth another try.
    async fn mend(&mut self, problem: MeshError) -> Result<(), MeshError> {
        self.stream = None;
        if !problem.is_broken() && problem.reason != "READER_SLOW" {
            return Err(problem);
        }
        if self.opened.elapsed() > HEALTHY_AFTER {
            self.endurance.renew();
        }
        self.endurance.wait(problem).await
    }
}

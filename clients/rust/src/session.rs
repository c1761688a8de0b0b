use serde_json::json;

use crate::{
    Mesh, MeshError, Watch,
    stubs::{
        CustomToolAnswered, EmitEventRequest, Event, MessageReceived, ToolConfirmationRequested, ToolConfirmed,
        ToolOutcome, ToolResult, event::Kind,
    },
};

/// A handle on one session: say something, follow what happens, answer what is asked.
#[derive(Clone)]
pub struct Session {
    pub id: String,
    pub(crate) mesh: Mesh,
}

impl Session {
    /// Appends an event and returns its position. Said again with the same `event_id` it is appended once.
    pub async fn emit(&self, event: Event) -> Result<i64, MeshError> {
        let request = EmitEventRequest { session_id: self.id.clone(), event: Some(event), ..Default::default() };
        let answer = self.mesh.call(request, async |mut service, request| service.emit_event(request).await).await?;
        Ok(answer.position)
    }

    /// Sends the agent a message; returns its position.
    pub async fn send(&self, text: &str) -> Result<i64, MeshError> {
        self.emit(message(text)).await
    }

    /// Answers a `CustomToolRequested`. The first answer counts; another one is refused (`TOOL_CALL_SETTLED`).
    pub async fn answer(&self, tool_use_id: &str, output: &str) -> Result<i64, MeshError> {
        let outcome = ToolOutcome::Ok.into();
        let result = ToolResult { output: output.into(), outcome, ..Default::default() };
        let tool_use_id = tool_use_id.into();
        let answered = CustomToolAnswered { tool_use_id, result: Some(result), ..Default::default() };
        self.emit(event("answer", Kind::CustomToolAnswered(answered))).await
    }

    /// Says whether a tool call may run. The first decision counts; `reason` is told to the model.
    pub async fn decide(
        &self,
        asked: &ToolConfirmationRequested,
        allowed: bool,
        reason: &str,
    ) -> Result<i64, MeshError> {
        let decision = ToolConfirmed {
            tool_use_id: asked.tool_use_id.clone(),
            allowed,
            message: reason.into(),
            call_hash: asked.call_hash.clone(),
        };
        self.emit(event("decision", Kind::ToolConfirmed(decision))).await
    }

    /// Follows the log from `start` on, each event once and in order, then each new one.
    ///
    /// With `previews` also pieces of events to come. After a break it goes on behind the last event seen; previews of
    /// the meantime are lost.
    pub fn watch(&self, start: i64, previews: bool) -> Watch {
        Watch::new(self.clone(), start, previews)
    }
}

/// Makes a message to the agent, with an id of its own.
pub(crate) fn message(text: &str) -> Event {
    let content_json = json!([{"type": "text", "text": text}]).to_string();
    event("message", Kind::MessageReceived(MessageReceived { content_json, ..Default::default() }))
}

fn event(what: &str, kind: Kind) -> Event {
    Event { event_id: fresh(what), kind: Some(kind), ..Default::default() }
}

/// Names an event, or a request, so that it can be said again after a lost answer.
pub(crate) fn fresh(what: &str) -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("an operating system that gives random bytes");
    format!("{what}-{:032x}", u128::from_ne_bytes(random))
}

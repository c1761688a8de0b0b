//! What `converse` prints: one JSON object for each event, preview and error, the same in every language.

use handmesh_client::{
    MeshError,
    stubs::{Event, Preview, ToolOutcome, ToolResult, event::Kind, preview::Delta},
};
use serde_json::{Value, json};
use tonic::Code;

/// Returns position, kind and what is essential of the kind. An unknown one that must not be skipped is an error.
pub fn of_event(event: &Event) -> Result<Value, MeshError> {
    let kind = match &event.kind {
        Some(kind) => kind.into(),
        None if event.ignorable => "unknown",
        None => {
            return Err(MeshError {
                code: Code::Unimplemented,
                reason: "EVENT_UNKNOWN".into(),
                metadata: [("position".into(), event.position.to_string())].into(),
                text: "an event of a newer contract".into(),
            });
        }
    };
    let mut line = event.kind.as_ref().map_or_else(|| json!({}), essence);
    line["event"] = json!(kind);
    line["position"] = json!(event.position);
    Ok(line)
}

fn essence(kind: &Kind) -> Value {
    match kind {
        Kind::MessageReceived(it) => json!({"content": it.content_json}),
        Kind::ModelReplied(it) => json!({"content": it.content_json, "stop_reason": it.stop_reason}),
        Kind::ToolStarted(it) => json!({"tool_use_id": it.tool_use_id, "name": it.name, "hand": it.hand}),
        Kind::ToolFinished(it) => settled(&it.tool_use_id, it.result.as_ref()),
        Kind::ToolConfirmationRequested(it) => {
            json!({"tool_use_id": it.tool_use_id, "name": it.name, "call_hash": it.call_hash})
        }
        Kind::ToolConfirmed(it) => json!({"tool_use_id": it.tool_use_id, "allowed": it.allowed}),
        Kind::CustomToolRequested(it) => {
            json!({"tool_use_id": it.tool_use_id, "name": it.name, "input": it.input_json})
        }
        Kind::CustomToolAnswered(it) => settled(&it.tool_use_id, it.result.as_ref()),
        Kind::TurnEnded(it) => json!({"reason": stripped(it.reason().as_str_name(), "TURN_END_REASON_")}),
        _ => json!({}),
    }
}

fn settled(tool_use_id: &str, result: Option<&ToolResult>) -> Value {
    let outcome = result.map_or(ToolOutcome::Unspecified, ToolResult::outcome);
    let output = result.map_or("", |it| &it.output);
    json!({"tool_use_id": tool_use_id, "outcome": stripped(outcome.as_str_name(), "TOOL_OUTCOME_"), "output": output})
}

fn stripped<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.strip_prefix(prefix).unwrap_or(name)
}

/// Returns the piece, and where it belongs.
pub fn of_preview(preview: &Preview) -> Value {
    let delta: &str = preview.delta.as_ref().map_or("unknown", Into::into);
    let piece = match &preview.delta {
        Some(Delta::Text(it) | Delta::Thinking(it) | Delta::ToolInput(it) | Delta::ToolOutput(it)) => it,
        _ => "",
    };
    let (id, block, offset) = (&preview.event_id, preview.block_index, preview.offset);
    json!({"preview": delta, "event_id": id, "block": block, "offset": offset, "piece": piece})
}

/// Returns why a call was refused, with the code as the contracts spell it.
pub fn of_error(error: &MeshError) -> Value {
    json!({"code": spelled(error.code), "reason": error.reason, "metadata": error.metadata})
}

/// Turns `InvalidArgument` into `INVALID_ARGUMENT`.
fn spelled(code: Code) -> String {
    let mut spelled = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !spelled.is_empty() {
            spelled.push('_');
        }
        spelled.push(letter.to_ascii_uppercase());
    }
    spelled
}

#[cfg(test)]
mod tests {
    use handmesh_client::stubs::{TurnEndReason, TurnEnded};

    use super::*;

    /// An event is printed with what is essential of its kind.
    #[test]
    fn an_event() {
        let kind = Kind::TurnEnded(TurnEnded { reason: TurnEndReason::Done.into(), ..Default::default() });
        let event = Event { position: 3, kind: Some(kind), ..Default::default() };
        assert_eq!(of_event(&event).unwrap(), json!({"event": "turn_ended", "position": 3, "reason": "DONE"}));
    }

    /// An event of a newer contract stops the reader, unless it may be ignored.
    #[test]
    fn an_unknown_event() {
        let event = Event { position: 4, ignorable: true, ..Default::default() };
        assert_eq!(of_event(&event).unwrap(), json!({"event": "unknown", "position": 4}));
        let stops = of_event(&Event { position: 5, ..Default::default() }).unwrap_err();
        let expected = json!({"code": "UNIMPLEMENTED", "reason": "EVENT_UNKNOWN", "metadata": {"position": "5"}});
        assert_eq!(of_error(&stops), expected);
    }

    /// A piece is printed with the place where it belongs.
    #[test]
    fn a_preview() {
        let delta = Some(Delta::ToolInput("hi".into()));
        let preview = Preview { event_id: "e".into(), block_index: 1, offset: 2, delta };
        let expected = json!({"preview": "tool_input", "event_id": "e", "block": 1, "offset": 2, "piece": "hi"});
        assert_eq!(of_preview(&preview), expected);
    }
}

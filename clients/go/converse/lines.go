package main

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"handmesh/clients/mesh"
	sandbox "handmesh/clients/stubs/handmesh/sandbox/v1"
	pb "handmesh/clients/stubs/handmesh/session/v1"
)

// line is what converse prints of an event, a preview or an error: the same in every language.
type line map[string]any

// eventLine returns position, kind and what is essential of the kind. An event that must not be skipped, and of which nothing
// is known, is an error.
func eventLine(event *pb.Event) (line, error) {
	kind := set(event, "kind")
	if kind == "" {
		if !event.GetIgnorable() {
			where := map[string]string{"position": fmt.Sprint(event.GetPosition())}
			return nil, &mesh.Error{Code: codes.Unimplemented, Reason: "EVENT_UNKNOWN", Metadata: where}
		}
		kind = "unknown"
	}
	said := line{"event": kind, "position": event.GetPosition()}
	switch it := event.GetKind().(type) {
	case *pb.Event_MessageReceived:
		said["content"] = it.MessageReceived.GetContentJson()
	case *pb.Event_ModelReplied:
		said["content"], said["stop_reason"] = it.ModelReplied.GetContentJson(), it.ModelReplied.GetStopReason()
	case *pb.Event_ToolStarted:
		said["tool_use_id"], said["name"] = it.ToolStarted.GetToolUseId(), it.ToolStarted.GetName()
		said["hand"] = it.ToolStarted.GetHand()
	case *pb.Event_ToolFinished:
		said.settle(it.ToolFinished.GetToolUseId(), it.ToolFinished.GetResult())
	case *pb.Event_ToolConfirmationRequested:
		asked := it.ToolConfirmationRequested
		said["tool_use_id"], said["name"], said["call_hash"] = asked.GetToolUseId(), asked.GetName(), asked.GetCallHash()
	case *pb.Event_ToolConfirmed:
		said["tool_use_id"], said["allowed"] = it.ToolConfirmed.GetToolUseId(), it.ToolConfirmed.GetAllowed()
	case *pb.Event_CustomToolRequested:
		asked := it.CustomToolRequested
		said["tool_use_id"], said["name"], said["input"] = asked.GetToolUseId(), asked.GetName(), asked.GetInputJson()
	case *pb.Event_CustomToolAnswered:
		said.settle(it.CustomToolAnswered.GetToolUseId(), it.CustomToolAnswered.GetResult())
	case *pb.Event_TurnEnded:
		said["reason"] = strings.TrimPrefix(it.TurnEnded.GetReason().String(), "TURN_END_REASON_")
	}
	return said, nil
}

func (l line) settle(toolUseID string, result *sandbox.ToolResult) {
	l["tool_use_id"], l["output"] = toolUseID, result.GetOutput()
	l["outcome"] = strings.TrimPrefix(result.GetOutcome().String(), "TOOL_OUTCOME_")
}

// previewLine returns the piece, and where it belongs.
func previewLine(preview *pb.Preview) line {
	delta, piece := set(preview, "delta"), ""
	if delta == "" {
		delta = "unknown"
	}
	switch it := preview.GetDelta().(type) {
	case *pb.Preview_Text:
		piece = it.Text
	case *pb.Preview_Thinking:
		piece = it.Thinking
	case *pb.Preview_ToolInput:
		piece = it.ToolInput
	case *pb.Preview_ToolOutput:
		piece = it.ToolOutput
	}
	return line{
		"preview": delta, "event_id": preview.GetEventId(), "block": preview.GetBlockIndex(),
		"offset": preview.GetOffset(), "piece": piece,
	}
}

// errorLine returns why a call was refused, with the code as the contracts spell it.
func errorLine(err error) line {
	problem := &mesh.Error{Code: codes.Unknown}
	errors.As(err, &problem)
	metadata := problem.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return line{"code": spelled(problem.Code), "reason": problem.Reason, "metadata": metadata}
}

// spelled turns InvalidArgument into INVALID_ARGUMENT.
func spelled(code codes.Code) string {
	var spelled strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' && code != codes.OK {
			spelled.WriteByte('_')
		}
		spelled.WriteRune(letter)
	}
	if code == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(spelled.String())
}

// set returns the name of the field of a oneof that is set, empty when none is.
func set(message protoreflect.ProtoMessage, oneof protoreflect.Name) string {
	it := message.ProtoReflect()
	if field := it.WhichOneof(it.Descriptor().Oneofs().ByName(oneof)); field != nil {
		return string(field.Name())
	}
	return ""
}

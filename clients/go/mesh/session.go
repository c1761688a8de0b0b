package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/codes"

	sandbox "handmesh/clients/stubs/handmesh/sandbox/v1"
	pb "handmesh/clients/stubs/handmesh/session/v1"
)

// Session is a handle on one session: say something, follow what happens, answer what is asked. Errors are of the type
// *Error, or the context's.
type Session struct {
	ID   string
	mesh *Mesh
}

// Told is what a watcher is told next: an event, or a piece of one to come.
type Told struct {
	Event   *pb.Event
	Preview *pb.Preview
}

// Emit appends an event and returns its position. Said again with the same event id it is appended once.
func (s *Session) Emit(ctx context.Context, event *pb.Event) (int64, error) {
	answer, err := again(ctx, s.mesh, s.mesh.service.EmitEvent, &pb.EmitEventRequest{SessionId: s.ID, Event: event})
	return answer.GetPosition(), err
}

// Send sends the agent a message and returns its position.
func (s *Session) Send(ctx context.Context, text string) (int64, error) {
	return s.Emit(ctx, message(text))
}

// Answer answers a CustomToolRequested. The first answer counts; another one is refused (TOOL_CALL_SETTLED).
func (s *Session) Answer(ctx context.Context, toolUseID, output string) (int64, error) {
	result := &sandbox.ToolResult{Output: output, Outcome: sandbox.ToolOutcome_TOOL_OUTCOME_OK}
	answered := &pb.CustomToolAnswered{ToolUseId: toolUseID, Result: result}
	return s.Emit(ctx, &pb.Event{EventId: fresh("answer"), Kind: &pb.Event_CustomToolAnswered{CustomToolAnswered: answered}})
}

// Decide says whether a tool call may run. The first decision counts; reason is told to the model.
func (s *Session) Decide(
	ctx context.Context, asked *pb.ToolConfirmationRequested, allowed bool, reason string,
) (int64, error) {
	decision := &pb.ToolConfirmed{
		ToolUseId: asked.GetToolUseId(), Allowed: allowed, Message: reason, CallHash: asked.GetCallHash(),
	}
	return s.Emit(ctx, &pb.Event{EventId: fresh("decision"), Kind: &pb.Event_ToolConfirmed{ToolConfirmed: decision}})
}

// Watch yields the events from start on, each once and in order, then each new one. It ends with an error, or with the loop.
//
// With previews also pieces of events to come. After a break it goes on behind the last event seen; previews of the meantime
// are lost.
func (s *Session) Watch(ctx context.Context, start int64, previews bool) iter.Seq2[Told, error] {
	return func(yield func(Told, error) bool) {
		next, endurance := cursor(max(1, start)), newEndurance(s.mesh.patience)
		for {
			opened := time.Now()
			more, problem := s.follow(ctx, &next, previews, func(told Told) bool {
				return yield(told, nil)
			}, endurance.renew)
			if !more {
				return
			}
			if ctx.Err() != nil || !problem.broken() && problem.Reason != "READER_SLOW" {
				yield(Told{}, problem)
				return
			}
			if time.Since(opened) > healthyAfter {
				endurance.renew()
			}
			if err := endurance.wait(ctx, problem); err != nil {
				yield(Told{}, err)
				return
			}
		}
	}
}

// follow tells what one stream has to say, until it breaks off or nobody wants more. It calls heard for each message of it.
func (s *Session) follow(
	ctx context.Context, next *cursor, previews bool, tell func(Told) bool, heard func(),
) (more bool, problem *Error) {
	ctx, cancel := context.WithCancel(s.mesh.signed(ctx))
	defer cancel()
	request := &pb.WatchEventsRequest{SessionId: s.ID, StartPosition: int64(*next), Previews: previews}
	stream, err := s.mesh.service.WatchEvents(ctx, request)
	if err != nil {
		return true, raised(err)
	}
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return true, &Error{Code: codes.Unavailable, text: "the stream ended"}
		}
		if err != nil {
			return true, raised(err)
		}
		heard()
		events, gap := next.news(page.GetEvents())
		for _, event := range events {
			if !tell(Told{Event: event}) {
				return false, nil
			}
		}
		if gap != nil {
			return true, gap
		}
		for _, preview := range page.GetPreviews() {
			if !tell(Told{Preview: preview}) {
				return false, nil
			}
		}
	}
}

// message makes a message to the agent, with an id of its own.
func message(text string) *pb.Event {
	content, _ := json.Marshal([]map[string]string{{"type": "text", "text": text}}) // strings can be spelled
	received := &pb.MessageReceived{ContentJson: string(content)}
	return &pb.Event{EventId: fresh("message"), Kind: &pb.Event_MessageReceived{MessageReceived: received}}
}

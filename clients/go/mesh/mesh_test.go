package mesh

import (
	"context"
	"errors"
	"net"
	"reflect"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "handmesh/clients/stubs/handmesh/session/v1"
)

const id = "sess_00000000000000000000000000"

// service plays streams, one for each watch: pages, then what it breaks off with. It fails as many emits as it has failures.
type service struct {
	pb.UnimplementedSessionServiceServer
	streams  [][]any
	failures []error
	key      string
	created  *pb.CreateSessionRequest
	emitted  []*pb.EmitEventRequest
	watched  []*pb.WatchEventsRequest
}

func (s *service) CreateSession(ctx context.Context, asked *pb.CreateSessionRequest) (*pb.CreateSessionResponse, error) {
	shown, _ := metadata.FromIncomingContext(ctx)
	s.key, s.created = shown.Get("authorization")[0], asked
	return &pb.CreateSessionResponse{Session: &pb.Session{SessionId: id}}, nil
}

func (s *service) EmitEvent(_ context.Context, said *pb.EmitEventRequest) (*pb.EmitEventResponse, error) {
	s.emitted = append(s.emitted, said)
	if len(s.failures) > 0 {
		failure := s.failures[0]
		s.failures = s.failures[1:]
		return nil, failure
	}
	return &pb.EmitEventResponse{Position: 7}, nil
}

func (s *service) WatchEvents(asked *pb.WatchEventsRequest, stream grpc.ServerStreamingServer[pb.WatchEventsResponse]) error {
	s.watched = append(s.watched, asked)
	played := s.streams[0]
	s.streams = s.streams[1:]
	for _, it := range played {
		switch it := it.(type) {
		case error:
			return it
		case *pb.WatchEventsResponse:
			if err := stream.Send(it); err != nil {
				return err
			}
		}
	}
	return nil
}

// refusal is what the mesh says no with.
func refusal(code codes.Code, reason string) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "handmesh", Metadata: map[string]string{"tool_use_id": "toolu_1"}}
	said, err := status.New(code, "no").WithDetails(info)
	if err != nil {
		panic(err)
	}
	return said.Err()
}

// page is a message of events.
func page(positions ...int64) *pb.WatchEventsResponse {
	message := &pb.WatchEventsResponse{}
	for _, position := range positions {
		message.Events = append(message.Events, &pb.Event{Position: position})
	}
	return message
}

// dial starts the service and returns a client of it, that gives up after two seconds.
func dial(t *testing.T, s *service) *Session {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterSessionServiceServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	client, err := Dial(listener.Addr().String(), Options{APIKey: "key", Patience: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client.Session(id)
}

// The key, the configuration and the first message go to the service, in one call that may be said again.
func TestASessionIsMadeWithTheKey(t *testing.T) {
	s := &service{}
	session, err := dial(t, s).mesh.Create(t.Context(), &pb.SessionConfig{System: "Be brief."}, `say "hi"`)
	if err != nil || session.ID != id {
		t.Fatal(session, err)
	}
	first := s.created.GetInitialEvents()[0]
	if s.key != "Bearer key" || s.created.GetRequestId() == "" || first.GetEventId() == "" {
		t.Error(s.key, s.created)
	}
	if content := first.GetMessageReceived().GetContentJson(); content != `[{"text":"say \"hi\"","type":"text"}]` {
		t.Error(content)
	}
}

// It goes on behind the last event seen: what comes twice is told once, and a slow reader is let in again.
func TestABrokenStreamIsResumed(t *testing.T) {
	with := page(2, 3)
	with.Previews = []*pb.Preview{{EventId: "next"}}
	s := &service{streams: [][]any{
		{with, refusal(codes.Unavailable, "DRAINING")},
		{page(3, 4), refusal(codes.ResourceExhausted, "READER_SLOW")},
		{},
		{page(5)},
	}}
	var seen []any
	for told, err := range dial(t, s).Watch(t.Context(), 2, true) {
		if err != nil {
			t.Fatal(err)
		}
		if told.Preview != nil {
			seen = append(seen, told.Preview.GetEventId())
			continue
		}
		seen = append(seen, told.Event.GetPosition())
		if told.Event.GetPosition() == 5 {
			break
		}
	}
	if expected := []any{int64(2), int64(3), "next", int64(4), int64(5)}; !reflect.DeepEqual(seen, expected) {
		t.Error(seen)
	}
	var starts []int64
	for _, asked := range s.watched {
		starts = append(starts, asked.GetStartPosition())
	}
	if expected := []int64{2, 4, 5, 5}; !reflect.DeepEqual(starts, expected) {
		t.Error(starts)
	}
}

// A log has no gaps, so a missing event is not passed over.
func TestAGapIsAnError(t *testing.T) {
	var last error
	var seen []int64
	for told, err := range dial(t, &service{streams: [][]any{{page(1, 3)}}}).Watch(t.Context(), 0, false) {
		if last = err; err == nil {
			seen = append(seen, told.Event.GetPosition())
		}
	}
	var problem *Error
	if !errors.As(last, &problem) || problem.Reason != "LOG_INVALID" || problem.Metadata["position"] != "2" {
		t.Error(last)
	}
	if !reflect.DeepEqual(seen, []int64{1}) {
		t.Error(seen)
	}
}

// A refusal has the code, the reason and the reason's metadata, and is not tried again.
func TestARefusalIsTyped(t *testing.T) {
	s := &service{failures: []error{refusal(codes.FailedPrecondition, "TOOL_CALL_SETTLED")}}
	asked := &pb.ToolConfirmationRequested{ToolUseId: "toolu_1", CallHash: "h"}
	_, err := dial(t, s).Decide(t.Context(), asked, true, "")
	var problem *Error
	if !errors.As(err, &problem) {
		t.Fatal(err)
	}
	if problem.Code != codes.FailedPrecondition || problem.Reason != "TOOL_CALL_SETTLED" {
		t.Error(problem)
	}
	if decision := s.emitted[0].GetEvent().GetToolConfirmed(); !decision.GetAllowed() || decision.GetCallHash() != "h" {
		t.Error(decision)
	}
	if problem.Metadata["tool_use_id"] != "toolu_1" || len(s.emitted) != 1 {
		t.Error(problem.Metadata, s.emitted)
	}
}

// While the service is away an answer is said again, by one event id: so it is in the log once.
func TestAnAnswerIsSaidAgain(t *testing.T) {
	away := refusal(codes.Unavailable, "DRAINING")
	s := &service{failures: []error{away, away}}
	position, err := dial(t, s).Answer(t.Context(), "toolu_1", "fine")
	if position != 7 || err != nil || len(s.emitted) != 3 {
		t.Fatal(position, err, s.emitted)
	}
	if s.emitted[0].GetEvent().GetEventId() != s.emitted[2].GetEvent().GetEventId() {
		t.Error(s.emitted)
	}
}

// A mesh that stays away is an error in the end.
func TestPatienceEnds(t *testing.T) {
	client, err := Dial("127.0.0.1:1", Options{APIKey: "key", Patience: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, err := range client.Session(id).Watch(t.Context(), 1, false) {
		var problem *Error
		if !errors.As(err, &problem) || problem.Code != codes.Unavailable || problem.Reason != "" {
			t.Error(err)
		}
	}
}

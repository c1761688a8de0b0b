package main

import (
	"reflect"
	"testing"

	"google.golang.org/grpc/codes"

	pb "handmesh/clients/stubs/handmesh/session/v1"
)

// An event is printed with what is essential of its kind.
func TestAnEventIsPrinted(t *testing.T) {
	ended := &pb.TurnEnded{Reason: pb.TurnEndReason_TURN_END_REASON_DONE}
	said, err := eventLine(&pb.Event{Position: 3, Kind: &pb.Event_TurnEnded{TurnEnded: ended}})
	if expected := (line{"event": "turn_ended", "position": int64(3), "reason": "DONE"}); !reflect.DeepEqual(said, expected) {
		t.Error(said, err)
	}
}

// An event of a newer contract stops the reader, unless it may be ignored.
func TestAnUnknownEventStopsTheReader(t *testing.T) {
	said, err := eventLine(&pb.Event{Position: 4, Ignorable: true})
	if expected := (line{"event": "unknown", "position": int64(4)}); !reflect.DeepEqual(said, expected) {
		t.Error(said, err)
	}
	_, err = eventLine(&pb.Event{Position: 5})
	expected := line{"code": "UNIMPLEMENTED", "reason": "EVENT_UNKNOWN", "metadata": map[string]string{"position": "5"}}
	if said := errorLine(err); !reflect.DeepEqual(said, expected) {
		t.Error(said)
	}
}

// A piece is printed with the place where it belongs.
func TestAPreviewIsPrinted(t *testing.T) {
	said := previewLine(&pb.Preview{EventId: "e", BlockIndex: 1, Offset: 2, Delta: &pb.Preview_Text{Text: "hi"}})
	expected := line{"preview": "text", "event_id": "e", "block": int32(1), "offset": int64(2), "piece": "hi"}
	if !reflect.DeepEqual(said, expected) {
		t.Error(said)
	}
}

// Codes are spelled as the contracts spell them.
func TestCodesAreSpelled(t *testing.T) {
	for code, expected := range map[codes.Code]string{
		codes.NotFound: "NOT_FOUND", codes.Canceled: "CANCELLED", codes.Unavailable: "UNAVAILABLE", codes.OK: "OK",
	} {
		if said := spelled(code); said != expected {
			t.Error(said)
		}
	}
}

package mesh

import (
	"fmt"

	"google.golang.org/grpc/codes"

	pb "handmesh/clients/stubs/handmesh/session/v1"
)

// cursor is where a reader is in a log: the next position to read. Positions are dense, from 1.
type cursor int64

// news returns what was not seen yet, and moves on behind it. What comes twice is dropped, and a gap is an error.
func (c *cursor) news(events []*pb.Event) ([]*pb.Event, *Error) {
	var fresh []*pb.Event
	for _, event := range events {
		switch next := int64(*c); {
		case event.GetPosition() > next:
			text := fmt.Sprintf("event %d is missing: %d came instead", next, event.GetPosition())
			return fresh, &Error{codes.DataLoss, "LOG_INVALID", map[string]string{"position": fmt.Sprint(next)}, text}
		case event.GetPosition() == next:
			fresh = append(fresh, event)
			*c++
		}
	}
	return fresh, nil
}

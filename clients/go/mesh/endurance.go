package mesh

import (
	"context"
	"time"
)

const (
	firstPause   = 50 * time.Millisecond // between two tries: doubled from the first to the longest
	longestPause = 2 * time.Second
	healthyAfter = 5 * time.Second // a stream that stood so long was a good one, even if it had nothing to say
)

// endurance waits between tries, until they have failed for all of its patience on end.
type endurance struct {
	patience, pause time.Duration
	givesUp         time.Time
}

func newEndurance(patience time.Duration) *endurance {
	return &endurance{patience: patience, pause: firstPause}
}

// renew begins anew: something worked.
func (e *endurance) renew() {
	e.pause, e.givesUp = firstPause, time.Time{}
}

// wait waits for the next try. Where there is to be none it returns the problem of the last one.
func (e *endurance) wait(ctx context.Context, problem *Error) error {
	now := time.Now()
	if e.givesUp.IsZero() {
		e.givesUp = now.Add(e.patience)
	}
	if now.Add(e.pause).After(e.givesUp) {
		return problem
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(e.pause):
	}
	e.pause = min(2*e.pause, longestPause)
	return nil
}

package api

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/agent"
)

// StreamEvents answers with server-sent events, as the routes of events do, for a face that knows its callers by itself. tell
// emits them until it ends. An error before the answer has begun is returned for the caller to show; the end of what has
// begun needs no words, because who listens comes again by itself.
func StreamEvents(ctx context.Context, w http.ResponseWriter, tell func(ctx context.Context, emit func(agent.Event) error) error) error {
	out := &lines{w: w, control: http.NewResponseController(w), header: http.Header{"Content-Type": {eventsType}, "X-Accel-Buffering": {"no"}}}
	s := &eventStream{out: out}
	stop := s.beat()
	err := tell(ctx, s.event)
	stop()
	switch {
	case err != nil && !out.begun:
		return err
	case err != nil:
		return nil // it has begun, and is over
	}
	// A client that reconnects by itself is told that there is nothing more: it would ask again and again.
	if _, err := out.Write([]byte("event: end\ndata: {}\n\n")); err != nil {
		return nil // the listener has gone
	}
	_ = out.close() // the same
	return nil
}

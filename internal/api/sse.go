package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// eventsType is an answer of server-sent events (WHATWG HTML, 9.2).
	eventsType = "text/event-stream"
	// lastEvent is the header of a client that goes on after an event.
	lastEvent = "Last-Event-ID"
	// firstBeat is when a silent stream says that it was accepted, and beat how often it says that it is still there.
	firstBeat, beat = time.Second, 15 * time.Second
)

// Event is something that an agent or a program did.
type Event agent.Event

func (a *API) eventRoutes() {
	of := []*huma.Param{agentNameParam(), tenantParam(), followParam(), afterParam(), lastEventParam()}
	answers := map[string]*huma.Schema{eventsType: a.schema(reflect.TypeFor[Event]())}
	a.plain(route{method: http.MethodGet, path: ofAgent + "/events", id: "agent-events", summary: "What an agent does, as server-sent events"}, of, answers, a.events)
	a.plain(route{method: http.MethodGet, path: ofProcesses + "/{id}/events", id: "process-events", summary: "What a program does, as server-sent events"},
		append([]*huma.Param{processID()}, of...), answers, a.events)
}

func followParam() *huma.Param {
	return &huma.Param{Name: "follow", In: "query", Schema: &huma.Schema{Type: huma.TypeBoolean, Default: true},
		Description: "go on with new events; with false, the answer ends after those that there are"}
}

func afterParam() *huma.Param {
	return &huma.Param{Name: "after", In: "query", Schema: &huma.Schema{Type: huma.TypeString},
		Description: "the id of an event to go on after; newest for new events only; from the oldest when it is left out"}
}

func lastEventParam() *huma.Param {
	return &huma.Param{Name: lastEvent, In: "header", Schema: &huma.Schema{Type: huma.TypeString}, Description: "the same as after, which it comes before"}
}

// events answers with server-sent events: each has its id, its type and itself as JSON. A client that is broken off, or that takes
// nothing for a while and is broken off for that, goes on where it was and is told what it missed.
func (a *API) events(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	tenant, name, err := ofOneAgent(req, by)
	if err != nil {
		return err
	}
	query := req.URL.Query()
	after, follow := cmp.Or(req.Header.Get(lastEvent), query.Get("after")), true
	if query.Get("follow") != "" {
		if follow, err = boolean(query, "follow"); err != nil {
			return err
		}
	}
	header := http.Header{"Content-Type": {eventsType}, "X-Accel-Buffering": {"no"}}
	a.pour(req.Context(), w, req, "Tell what an agent does", header, func(ctx context.Context, out *lines) error {
		s := &eventStream{out: out}
		if follow {
			defer s.beat()()
		}
		err := a.Agents.Events(ctx, by, tenant, name, req.PathValue("id"), after, follow, s.event)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil {
			// A client that reconnects by itself is told that there is nothing more: it would ask again and again.
			if _, err = out.Write([]byte("event: end\ndata: {}\n\n")); err == nil {
				err = out.flush()
			}
		}
		return err
	})
	return nil
}

// eventStream writes events, and that it is still there.
type eventStream struct {
	mu   sync.Mutex // held while something is written
	out  *lines
	text bytes.Buffer
}

// event writes one.
func (s *eventStream) event(e agent.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Reset()
	s.text.WriteString("id: " + e.ID + "\nevent: " + string(e.Type) + "\ndata: ")
	encoder := json.NewEncoder(&s.text)
	encoder.SetEscapeHTML(false)              // a line stays as it was printed
	if err := encoder.Encode(e); err != nil { // in one line, with its end
		return err
	}
	s.text.WriteByte('\n')
	if _, err := s.out.Write(s.text.Bytes()); err != nil {
		return err
	}
	return s.out.flush()
}

// beat writes comments while nothing else is written, until the returned function is called.
func (s *eventStream) beat() (stop func()) {
	ended := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		next := firstBeat
		for {
			timer := time.NewTimer(next)
			select {
			case <-ended:
				timer.Stop()
				return
			case <-timer.C:
			}
			next = beat
			s.mu.Lock()
			_, err := s.out.Write([]byte(": still here\n\n"))
			if err == nil {
				err = s.out.flush()
			}
			s.mu.Unlock()
			if err != nil {
				return // the client is gone: the next event, or the end of the request, says so
			}
		}
	})
	return func() { close(ended); beating.Wait() }
}

// execParam says which of the two an attachment is.
func execParam() *huma.Param {
	return &huma.Param{Name: "exec", In: "query", Schema: &huma.Schema{Type: huma.TypeBoolean},
		Description: "run the program in the agent's own jail, beside what runs there; the caller alone has its input and output"}
}

// boolean reads a parameter that is true or false, which it is when it is left out.
func boolean(query url.Values, name string) (bool, error) {
	text := query.Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, problem.New(problem.BadRequest, "write true or false", "%s cannot be %s", name, quote(text))
	}
	return v, nil
}

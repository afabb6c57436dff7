package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/api/pipes"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxEvent bounds one event: the longest line, as JSON writes it.
	maxEvent = 2 << 20
	// maxRefusal bounds what is read of an answer that is no WebSocket.
	maxRefusal = 64 << 10
)

// EventsQuery says which events are wanted.
type EventsQuery struct {
	Tenant, Agent string
	// Process is the id of a program; empty is the agent's jail.
	Process string
	// After is the id of an event to go on after, [agent.Newest], or empty for the oldest.
	After string
	// Follow goes on with what happens.
	Follow bool
}

// Events calls emit with events until ctx ends, emit returns an error, or there are no more: of what is followed, because it
// is over. When the control plane goes away meanwhile, that is an error; the id of the last event is where to go on.
func (c *Client) Events(ctx context.Context, q EventsQuery, emit func(agent.Event) error) error {
	path := pathOf("agents", q.Agent, "events")
	if q.Process != "" {
		path = pathOf("agents", q.Agent, "processes", q.Process, "events")
	}
	query := url.Values{"follow": {strconv.FormatBool(q.Follow)}}
	for name, value := range map[string]string{"tenant": q.Tenant, "after": q.After} {
		if value != "" {
			query.Set(name, value)
		}
	}
	response, err := c.send(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		_, err := whole(ctx, response)
		return err
	}
	defer response.Body.Close() // read to its end, or given up
	return readEvents(ctx, response.Body, emit)
}

// readEvents reads server-sent events as this API writes them: one line of data each.
func readEvents(ctx context.Context, from io.Reader, emit func(agent.Event) error) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	var data []byte
	end := false
	for lines.Scan() {
		line := lines.Bytes()
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "event":
			end = string(value) == "end"
		case "data":
			data = append(data[:0], value...)
		case "": // a comment, or the end of an event
			if len(line) > 0 || len(data) == 0 {
				continue
			}
			if end {
				return nil
			}
			var e agent.Event
			if err := json.Unmarshal(data, &e); err != nil {
				return fmt.Errorf("read an event of the control plane: %w", err)
			}
			if err := emit(e); err != nil {
				return err
			}
			data = data[:0]
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF // it did not say that this is the end
	}
	return brokeOff(ctx, err)
}

// Streams are the stdio of a program, from outside.
type Streams struct {
	In       io.Reader // nil is one with nothing in it
	Out, Err io.Writer
}

// Attach runs a program in a jail for an agent with its stdio here, and returns when it has ended and everything that it printed
// is written. With exec it is in the agent's own jail, which runs. The end of ctx ends the program.
func (c *Client) Attach(ctx context.Context, name string, exec bool, r op.ProcessRequest, stdio Streams) (api.Attached, error) {
	target, err := c.at(pathOf("agents", name, "attach"))
	if err != nil {
		return api.Attached{}, err
	}
	query := url.Values{}
	if r.Tenant != "" {
		query.Set("tenant", r.Tenant)
	}
	if exec {
		query.Set("exec", "true")
	}
	target.RawQuery = query.Encode()
	first, err := api.Encode(r)
	if err != nil {
		return api.Attached{}, err
	}
	conn, response, err := websocket.Dial(ctx, target.String(), &websocket.DialOptions{
		HTTPClient: c.http, CompressionMode: websocket.CompressionDisabled,
		HTTPHeader: http.Header{"Authorization": {"Bearer " + c.key}},
	})
	if err != nil {
		return api.Attached{}, c.notAttached(ctx, response, err)
	}
	defer func() { _ = conn.CloseNow() }() // closed before, unless something went wrong
	if err := conn.Write(ctx, websocket.MessageText, first); err != nil {
		return api.Attached{}, brokeOff(ctx, err)
	}
	return attached(ctx, conn, stdio)
}

// notAttached is why there is no WebSocket.
func (c *Client) notAttached(ctx context.Context, response *http.Response, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if response != nil && response.Body != nil && response.StatusCode != http.StatusSwitchingProtocols {
		if data, readErr := io.ReadAll(io.LimitReader(response.Body, maxRefusal)); readErr == nil {
			return refusal(response, data)
		}
	}
	return problem.Wrap(err, problem.ControlPlaneUnreachable, unreachableHint(err), "the control plane at %s does not answer", c.base.Host)
}

// attached carries the stdio until the program has ended.
func attached(ctx context.Context, conn *websocket.Conn, stdio Streams) (api.Attached, error) {
	ends := pipes.NewClient(conn)
	work, stop := context.WithCancel(ctx)
	defer stop()
	in := stdio.In
	if in == nil {
		in = bytes.NewReader(nil)
	}
	// Nothing ends a read from a terminal but a line: it is not waited for.
	go func() { _ = ends.Send(work, pipes.Stdin, in) }()
	var printing sync.WaitGroup
	failed := make(chan error, 2)
	for channel, to := range map[byte]io.Writer{pipes.Stdout: stdio.Out, pipes.Stderr: stdio.Err} {
		printing.Go(func() {
			if err := ends.Receive(work, channel, to); err != nil {
				failed <- err
				stop() // the reader of the output has gone
			}
		})
	}
	err := ends.Serve(work)
	if err != nil {
		stop()
	}
	printing.Wait()
	close(failed)
	text := ends.Exit()
	if err == nil && text != nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // a server that does not answer is gone
	}
	switch wrong := <-failed; {
	case ctx.Err() != nil:
		return api.Attached{}, context.Cause(ctx)
	case wrong != nil && !errors.Is(wrong, pipes.ErrLeft) && !errors.Is(wrong, context.Canceled):
		return api.Attached{}, fmt.Errorf("write what the program printed: %w", wrong)
	case text == nil:
		return api.Attached{}, brokeOff(ctx, err)
	}
	var out struct {
		api.Attached
		Problem json.RawMessage `json:"problem"`
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return api.Attached{}, fmt.Errorf("read how the program ended: %w", err)
	}
	if len(out.Problem) > 0 {
		if p, ok := control.ReadProblem(out.Problem); ok {
			return api.Attached{}, p
		}
		return api.Attached{}, errors.New("the program did not run, and the control plane does not say why")
	}
	return out.Attached, nil
}

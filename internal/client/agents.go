package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxPlan bounds a plan: that of the largest file, and some.
const maxPlan = 16 << 20

// SyncAgents makes the machine match a file. progress, which may be nil, is told of steps as they begin and are done. Steps that
// failed say so in the plan, and are no error.
func (c *Client) SyncAgents(ctx context.Context, r agent.SyncRequest, progress func(agent.Step)) (agent.Plan, error) {
	return told[agent.Step, agent.Plan](ctx, c, pathOf("agents", "sync"), r, "plan", progress)
}

// DeclareAgent declares one agent, beside what is declared.
func (c *Client) DeclareAgent(ctx context.Context, name string, r api.DeclareRequest, progress func(agent.Step)) (agent.Plan, error) {
	return told[agent.Step, agent.Plan](ctx, c, pathOf("agents", name, "declare"), r, "plan", progress)
}

// told asks for what is done step by step, and told line by line. last is the name under which the end of it stands.
func told[S, R any](ctx context.Context, c *Client, path string, body any, last string, progress func(S)) (R, error) {
	var none R
	text, err := api.Encode(body)
	if err != nil {
		return none, err
	}
	response, err := c.send(ctx, http.MethodPost, path, url.Values{"progress": {"true"}}, bytes.NewReader(text))
	if err != nil {
		return none, err
	}
	if response.StatusCode/100 != 2 {
		_, err := whole(ctx, response)
		return none, err
	}
	defer response.Body.Close() // read to its end, or given up
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 4<<10), maxPlan)
	for lines.Scan() {
		var line map[string]json.RawMessage
		var step S
		var out R
		err := json.Unmarshal(lines.Bytes(), &line)
		switch {
		case err != nil:
		case line["problem"] != nil:
			return none, refusal(response, line["problem"])
		case line[last] != nil:
			if err = json.Unmarshal(line[last], &out); err == nil {
				return out, nil
			}
		case line["step"] != nil && progress != nil:
			if err = json.Unmarshal(line["step"], &step); err == nil {
				progress(step)
			}
		}
		if err != nil {
			return none, fmt.Errorf("read the answer of the control plane: %w", err)
		}
	}
	err = lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return none, brokeOff(ctx, err)
}

// AgentLog returns a piece of what an agent's jails have printed.
func (c *Client) AgentLog(ctx context.Context, r jail.LogRequest) (jail.LogChunk, error) {
	query := url.Values{"stream": {string(r.Stream)}, "offset": {strconv.FormatInt(r.Offset, 10)}}
	if r.Tenant != "" {
		query.Set("tenant", r.Tenant)
	}
	if r.Limit > 0 {
		query.Set("limit", strconv.Itoa(r.Limit))
	}
	if r.Wait > 0 {
		query.Set("wait", r.Wait.Round(time.Millisecond).String())
	}
	if r.Times {
		query.Set("times", "true")
	}
	response, err := c.send(ctx, http.MethodGet, pathOf("agents", r.Name, "log"), query, nil)
	if err != nil {
		return jail.LogChunk{}, err
	}
	data, err := whole(ctx, response)
	if err != nil {
		return jail.LogChunk{}, err
	}
	out := jail.LogChunk{Data: data}
	for header, n := range map[string]*int64{api.LogOffsetHeader: &out.Offset, api.LogFirstHeader: &out.First, api.LogEndHeader: &out.End} {
		if *n, err = strconv.ParseInt(response.Header.Get(header), 10, 64); err != nil || *n < 0 {
			return jail.LogChunk{}, problem.New(problem.ControlPlaneUnreachable, notOurs, "the answer has no offset in %s", header)
		}
	}
	var ok bool
	if out.Marks, ok = api.ParseLogTimes(response.Header.Get(api.LogTimesHeader)); !ok {
		return jail.LogChunk{}, problem.New(problem.ControlPlaneUnreachable, notOurs, "the answer has no times in %s", api.LogTimesHeader)
	}
	return out, nil
}

// TypeToAgent writes to the stdin of an agent's jail, at most a megabyte, and says how much was taken.
func (c *Client) TypeToAgent(ctx context.Context, tenant, name string, data []byte) (int, error) {
	response, err := c.sendBytes(ctx, pathOf("agents", name, "stdin"), ofTenant(tenant), "application/octet-stream", data)
	if err != nil {
		return 0, err
	}
	answer, err := whole(ctx, response)
	if err != nil {
		written := 0
		if p, ok := problem.As(err); ok {
			if n, ok := p.Details["written"].(float64); ok {
				written = max(0, min(int(n), len(data)))
			}
		}
		return written, err
	}
	var out api.Written
	if err := json.Unmarshal(answer, &out); err != nil || out.Bytes < 0 || out.Bytes > len(data) {
		return 0, fmt.Errorf("the control plane has taken %d bytes of %d: %w", out.Bytes, len(data), io.ErrUnexpectedEOF)
	}
	return out.Bytes, nil
}

// sendBytes sends a body of any bytes.
func (c *Client) sendBytes(ctx context.Context, path string, query url.Values, kind string, data []byte) (*http.Response, error) {
	target, err := c.at(path)
	if err != nil {
		return nil, err
	}
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	request.Header.Set("Content-Type", kind)
	return c.ask(request)
}

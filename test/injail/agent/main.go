// Command agent does in a jail what an agent does, one command after the other, and says how it went.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/test/injail"
)

// Bounds of one command.
const (
	commandTimeout = time.Minute
	maxBody        = 1 << 20
)

func main() {
	a := &agent{}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c injail.Command
		if in.Decode(&c) != nil {
			return // the test has nothing more to do
		}
		var r injail.Reply
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		err := a.do(ctx, c, &r)
		cancel()
		if err != nil {
			r.Error = err.Error()
		}
		if out.Encode(r) != nil {
			return // the test does not read any more
		}
	}
}

// agent holds the connections that commands opened.
type agent struct {
	tools  *mcp.ClientSession
	socket *websocket.Conn
}

func (a *agent) do(ctx context.Context, c injail.Command, r *injail.Reply) (err error) {
	if c.Do == injail.Call && a.tools == nil || (c.Do == injail.Send || c.Do == injail.AwaitClose) && a.socket == nil {
		return errors.New("nothing was connected before")
	}
	switch c.Do {
	case injail.Request:
		return request(ctx, c, r)
	case injail.Connect:
		return a.connect(ctx, c, r)
	case injail.Call:
		return a.call(ctx, c, r)
	case injail.Dial:
		a.socket, _, err = websocket.Dial(ctx, c.URL, nil)
		if err == nil {
			a.socket.SetReadLimit(maxBody)
		}
		return err
	case injail.Send:
		return a.send(ctx, c, r)
	case injail.AwaitClose:
		for err == nil {
			_, _, err = a.socket.Read(ctx)
		}
		if end, ok := errors.AsType[websocket.CloseError](err); ok {
			r.Status, r.Body, err = int(end.Code), end.Reason, nil
		}
		return err
	}
	return errors.New("no such command: " + c.Do)
}

// keyed adds an API key to every request of a client.
type keyed string

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

func request(ctx context.Context, c injail.Command, r *injail.Reply) error {
	transport := &http.Transport{DisableKeepAlives: true}
	if c.Proxy != "" {
		proxy, err := url.Parse(c.Proxy)
		if err != nil {
			return err
		}
		transport.Proxy = http.ProxyURL(proxy)
	}
	req, err := http.NewRequestWithContext(ctx, c.Method, c.URL, strings.NewReader(c.Body))
	if err != nil {
		return err
	}
	req.Host = c.Host
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	if c.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()                                               // only read
	body, err := io.ReadAll(http.MaxBytesReader(nil, answer.Body, maxBody)) // a part would be taken for all of it
	r.Status, r.Body = answer.StatusCode, string(body)
	return err
}

func (a *agent) connect(ctx context.Context, c injail.Command, r *injail.Reply) (err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	a.tools, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: c.URL, HTTPClient: &http.Client{Transport: keyed(c.Key)}}, nil)
	if err != nil {
		return err
	}
	list, err := a.tools.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	for _, t := range list.Tools {
		r.Tools = append(r.Tools, t.Name)
	}
	return nil
}

func (a *agent) call(ctx context.Context, c injail.Command, r *injail.Reply) error {
	if c.Arguments == nil {
		c.Arguments = map[string]any{}
	}
	result, err := a.tools.CallTool(ctx, &mcp.CallToolParams{Name: c.Tool, Arguments: c.Arguments})
	if err != nil {
		return err
	}
	r.Failed = result.IsError
	for _, content := range result.Content {
		switch content := content.(type) {
		case *mcp.TextContent:
			r.Body += content.Text + "\n"
		case *mcp.ImageContent:
			r.Pictures += len(content.Data)
		}
	}
	return nil
}

// send sends a command that has an id of its own, and reads until its reply.
func (a *agent) send(ctx context.Context, c injail.Command, r *injail.Reply) error {
	type numbered struct{ ID int }
	var sent numbered
	if err := json.Unmarshal([]byte(c.Body), &sent); err != nil || sent.ID == 0 {
		return errors.Join(err, errors.New("the command has no id"))
	}
	if err := a.socket.Write(ctx, websocket.MessageText, []byte(c.Body)); err != nil {
		return err
	}
	for {
		_, frame, err := a.socket.Read(ctx)
		if err != nil {
			return err
		}
		var got numbered
		if json.Unmarshal(frame, &got) == nil && got.ID == sent.ID {
			r.Body = string(frame)
			return nil
		}
	}
}

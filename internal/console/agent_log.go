package console

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// logLines is how many lines a page begins with, and logBytes how far back they are looked for in each stream.
	logLines = 200
	logBytes = 64 << 10
	// shownLine bounds what a page begins with of one line.
	shownLine = 16 << 10
)

// logLine is one line of a log as a page shows it.
type logLine struct {
	At      time.Time // zero where nobody knows it
	Stderr  bool
	Note    bool // something that happened, instead of something that was printed
	Text    string
	Summary string // of a line of JSON, whose whole is Text
}

// logView is a log: the lines that the page begins with, and where its script goes on.
type logView struct {
	Lines  []logLine
	Events string // where what follows comes from
	After  string // the last event that is on the page
	Type   string // where something is typed to; empty where nobody may
	Form   *form
	Ended  bool
	Name   string
}

// agentLogs is the page with an agent's log.
type agentLogs struct {
	oneAgent
	Log logView
}

func (c *Console) agentLogPage(q *request) error {
	one, err := c.theAgent(q, "/log")
	if err != nil {
		return err
	}
	if one.Only {
		return problem.New(problem.NotFound, "programs that are started for it have logs of their own", "%s has no jail, and so no log", one.Name)
	}
	return c.showAgentLog(q, one, blank("newline", "yes"))
}

func (c *Console) showAgentLog(q *request, one oneAgent, f *form) error {
	after, err := c.someWayBack(q, one)
	if err != nil {
		return err
	}
	view, err := c.logView(q, one, "", after, f)
	if err != nil {
		return err
	}
	if !f.ok() {
		return q.again("agent_log", one.Name+" · log", agentLogs{one, view})
	}
	return q.show("agent_log", one.Name+" · log", agentLogs{one, view})
}

// someWayBack is where a page begins to tell: at a line of each of the streams.
func (c *Console) someWayBack(q *request, one oneAgent) (string, error) {
	var at [2]int64
	for n, stream := range []jail.Stream{jail.Stdout, jail.Stderr} {
		chunk, err := c.Agents.ReadLog(q.ctx(), q.by, jail.LogRequest{Tenant: one.Tenant, Name: one.Name, Stream: stream, Offset: -logBytes, Limit: logBytes})
		if err != nil {
			return "", err
		}
		at[n] = lineNearTheEnd(chunk)
	}
	return agent.After(at[0], at[1], time.Time{}), nil
}

// lineNearTheEnd is where the last lines of a piece begin, as many as a page shows. The first line is left out when its beginning
// may be lost.
func lineNearTheEnd(chunk jail.LogChunk) int64 {
	data := chunk.Data
	begin := 0
	if chunk.Offset > 0 {
		begin = bytes.IndexByte(data, '\n') + 1
		if begin == 0 {
			return chunk.Offset + int64(len(data))
		}
	}
	for n, count := len(data)-2, 0; n >= begin; n-- {
		if data[n] == '\n' {
			if count++; count == logLines {
				begin = n + 1
				break
			}
		}
	}
	return chunk.Offset + int64(begin)
}

// logView is the log of an agent's jail, or of a program of its.
func (c *Console) logView(q *request, one oneAgent, of, after string, f *form) (logView, error) {
	base := one.Path
	if of != "" {
		base += "/programs/" + of
	}
	out := logView{Events: base + "/events", After: after, Type: base + "/type", Form: f, Name: one.Name}
	began := c.Now()
	err := c.Agents.Events(q.ctx(), q.by, one.Tenant, one.Name, of, after, false, func(e agent.Event) error {
		out.After = e.ID
		l := lineOf(e)
		if (e.Type == agent.EventText || e.Type == agent.EventJSON || e.Type == agent.EventMissed) && !e.At.Before(began) {
			l.At = time.Time{} // it has just been read: when it was printed, nobody knows
		}
		out.Lines = append(out.Lines, l)
		if len(out.Lines) > 2*logLines {
			out.Lines = append(out.Lines[:0], out.Lines[len(out.Lines)-logLines:]...)
		}
		return nil
	})
	out.Lines = out.Lines[max(0, len(out.Lines)-logLines):]
	return out, err
}

// lineOf is an event as a line. static/log.js says the same of what comes later.
func lineOf(e agent.Event) logLine {
	out := logLine{At: e.At, Stderr: e.Stream == jail.Stderr, Text: e.Text}
	switch e.Type {
	case agent.EventStarted:
		out.Note, out.Text = true, "The program began."
	case agent.EventMissed:
		out.Note, out.Text = true, sayBytes(e.Missed)+" are missing here: they were gone before they could be read."
	case agent.EventExit:
		out.Note, out.Text = true, sayExit(e.Exit)
	case agent.EventJSON:
		out.Summary = summaryOf(e)
		var whole bytes.Buffer
		if err := json.Indent(&whole, e.JSON, "", "  "); err != nil {
			whole.Write(e.JSON) // it is shown as it came
		}
		out.Text = whole.String()
	}
	out.Text = texts.Clip(out.Text, shownLine)
	if e.Cut {
		out.Text += " … (the rest of the line was not kept)"
	}
	return out
}

// saying are the members of an event that say in short what it is about.
var saying = [...]string{"message", "msg", "text", "content", "summary", "title", "name", "tool", "command", "path", "url", "status", "error"}

// summaryOf is a line of JSON in short: its type, and what of it says something.
func summaryOf(e agent.Event) string {
	var members map[string]json.RawMessage
	if json.Unmarshal(e.JSON, &members) != nil {
		return short(160, string(e.JSON))
	}
	var parts []string
	if e.Name != "" {
		parts = append(parts, e.Name)
	}
	for _, name := range saying {
		var text string
		if raw, ok := members[name]; ok && json.Unmarshal(raw, &text) == nil && strings.TrimSpace(text) != "" {
			parts = append(parts, strings.Join(strings.Fields(text), " "))
			break
		}
	}
	if len(parts) == 0 {
		return short(160, string(e.JSON))
	}
	return short(160, strings.Join(parts, " · "))
}

// sayExit is how something ended.
func sayExit(e *jail.Exit) string {
	if e == nil {
		return "It ended."
	}
	return "It ended: " + e.Words() + "."
}

// agentEvents tells what an agent, or a program of its, does from now on, as server-sent events.
func (c *Console) agentEvents(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	after := q.query("after")
	if id := q.r.Header.Get("Last-Event-ID"); id != "" {
		after = id
	}
	q.w.Header().Set("Cache-Control", "no-store, no-transform")
	return api.StreamEvents(q.ctx(), q.w, func(ctx context.Context, emit func(agent.Event) error) error {
		return c.Agents.Events(ctx, q.by, q.value("tenant"), q.value("name"), q.value("id"), after, true, emit)
	})
}

// typeToAgent writes to the standard input of an agent's jail, or of a program of its. The answer does not repeat the text.
func (c *Console) typeToAgent(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	f, err := q.form()
	if err != nil {
		return err
	}
	tenant, name, of := q.value("tenant"), q.value("name"), q.value("id")
	back := agentPath(tenant, name) + "/log"
	if of != "" {
		back = agentPath(tenant, name) + "/programs/" + of
	}
	// A form has CR LF at the ends of lines; programs have LF.
	text := strings.ReplaceAll(f.Values.Get("text"), "\r\n", "\n")
	if f.Has("newline") {
		text += "\n"
	}
	if text == "" && !f.Has("end") {
		return q.failed(back, problem.New(problem.BadRequest, "write something, or tick Append newline", "there is nothing to type"))
	}
	n, err := c.Agents.Type(q.ctx(), q.by, tenant, name, of, []byte(text))
	if err != nil {
		return q.failed(back, err)
	}
	return q.done(back, "%s typed.", sayBytes(n))
}

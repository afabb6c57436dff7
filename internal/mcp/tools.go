package mcp

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// tool is one row of the table of tools.
type tool struct {
	name, about  string
	takes, needs []string // properties; and which of them there must be
	reads        bool     // it changes nothing
	foreign      bool     // another server reads its arguments
	run          func(s *Server, ctx context.Context, c *call) (*sdk.CallToolResult, error)
}

// tools is the table, in the order in which an agent reads it.
func tools() []tool {
	in := func(more ...string) []string { return append([]string{aTarget, aSession}, more...) }
	return []tool{
		{name: "browser_open_session", about: "Open a browser session in a jail of its own. Close it when done.",
			takes: anOpening(), run: (*Server).openSession},
		{name: "browser_run_task", about: "Reach a goal with a model of yours, or run up to 50 known steps, in a fresh session, which is closed afterwards. " +
			"Answers one line per step and where it ended; the answer to a goal; of steps, a screenshot.",
			takes: append([]string{
				`"goal":{"type":"string","description":"in words, instead of steps"}`, `"url":{"type":"string","description":"to begin with"}`,
				`"model":{"type":"string"}`, `"dialect":{"enum":["anthropic","openai-chat","openai-responses"]}`,
				`"schema":{"type":"object","description":"JSON Schema of the answer"}`, `"pictures":{"type":"boolean","description":"show them to the model"}`,
				`"maxSteps":{"type":"integer","description":"of a goal, default 25"}`, `"maxTokens":{"type":"integer","description":"default 200000"}`,
				`"agent":{"type":"string","description":"operators name the one that it is done as"}`,
				`"steps":{"type":"array","items":{"type":"object"},"description":"` +
					`{do: navigate|open|snapshot|screenshot|query|text|eval, or a kind of browser_act, and its arguments}: ` +
					`{do:navigate,url:…}, {do:type,selector:#q,text:…,submit:true}"}`,
				`"stopOnError":{"type":"boolean","description":"default true"}`,
				`"screenshot":{"type":"boolean","description":"at the end, default true"}`,
				`"timeoutMs":{"type":"integer","description":"of all, at most 300000; of a goal 1800000"}`, aMaxChars,
			}, anOpening()...), run: (*Server).runTask},
		{name: "browser_close_session", about: "Close a session. Nothing of it is kept.", takes: []string{aSession}, run: (*Server).closeSession},
		{name: "browser_tabs", about: "List tabs (default), open, select, label or close one.",
			takes: in(`"action":{"enum":["list","new","select","label","close"]}`, aTab, `"index":{"type":"integer"}`,
				`"url":{"type":"string"}`, `"label":{"type":"string"}`), run: (*Server).tabs},
		{name: "browser_navigate", about: "Open an address in a tab and wait until it has loaded.",
			takes: in(`"url":{"type":"string"}`, aTab, aShow, aTimeout), needs: []string{"url"}, run: (*Server).navigate},
		{name: "browser_snapshot", about: "The page as text with refs of what can be used. Refs die when the page changes.", reads: true,
			takes: in(aTab, `"mode":{"enum":["efficient"],"description":"interactive, compact, depth 6"}`,
				`"interactive":{"type":"boolean","description":"only what can be used, no text"}`,
				`"compact":{"type":"boolean","description":"without what only groups"}`, `"depth":{"type":"integer"}`,
				`"selector":{"type":"string","description":"only below this"}`, `"urls":{"type":"boolean","description":"of links"}`,
				`"format":{"enum":["ai","aria","domSnapshot"]}`, `"limit":{"type":"integer","description":"nodes, of aria and domSnapshot"}`,
				aMaxChars, aTimeout), run: (*Server).snapshot},
		{name: "browser_act", about: "Click, type, press, select, wait and so on, by ref or selector, with real input.",
			takes: in(append([]string{aTab, aShow}, anAct()...)...), needs: []string{"kind"}, run: (*Server).act},
		{name: "browser_screenshot", about: "A picture. A snapshot is cheaper and has refs.", reads: true,
			takes: in(aTab, `"fullPage":{"type":"boolean"}`, aRef, `"element":{"type":"string","description":"CSS selector"}`,
				`"labels":{"type":"boolean","description":"draw refs"}`,
				`"type":{"enum":["jpeg","png"]}`, `"quality":{"type":"integer","description":"default 70"}`,
				`"width":{"type":"integer","description":"of the window"}`, `"height":{"type":"integer"}`,
				`"maxWidth":{"type":"integer","description":"of the picture, default 1280"}`, aTimeout), run: (*Server).screenshot},
		{name: "browser_query", about: "Short descriptions of the elements that a CSS selector matches.", reads: true,
			takes: in(aTab, aSelector, `"limit":{"type":"integer","description":"default 20"}`, aMaxChars),
			needs: []string{"selector"}, run: (*Server).query},
		{name: "browser_eval", about: "Run JavaScript in the page. Not in operator sessions with access tools.",
			takes: in(aTab, `"js":{"type":"string"}`, `"await":{"type":"boolean"}`, aMaxChars, aTimeout),
			needs: []string{"js"}, run: (*Server).eval},
		{name: "capabilities", about: "What is possible here: targets, modes, limits, your open sessions.", reads: true,
			run: (*Server).capabilities},
	}
}

// call is one call of a tool.
type call struct {
	*caller
	raw []byte
	// progress tells a client that wants to know how far a long call is.
	progress func(ctx context.Context, done, of float64, what string)
}

// handle makes a tool out of its row: it turns errors into results.
func (s *Server) handle(t tool) sdk.ToolHandler {
	return func(ctx context.Context, request *sdk.CallToolRequest) (out *sdk.CallToolResult, _ error) {
		err := s.during(ctx, t.name, func(ctx context.Context, who *caller) (err error) {
			if who.refused != nil {
				return who.refused
			}
			if err = t.check(request.Params.Arguments); err != nil {
				return t.explain(err)
			}
			out, err = t.run(s, ctx, &call{caller: who, raw: request.Params.Arguments, progress: progressTo(request.Session, request.Params)})
			if err != nil {
				err = t.explain(err)
			}
			return err
		})
		if err != nil {
			return s.failure(t.name, err), nil
		}
		return out, nil
	}
}

// during finds out who calls, and does something for them, as one of the calls that they may have at the same time.
func (s *Server) during(ctx context.Context, what string, do func(ctx context.Context, who *caller) error) (err error) {
	who, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return problem.New(problem.Unauthorized, "", "the caller is not authenticated")
	}
	leave, err := s.calls.enter(keyOf(who.by))
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := until(ctx, who.gone)
	defer cancel()
	// The protocol library has goroutines of its own, in which a panic ends the process and not the request.
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error("mcp: a call panicked", "of", what, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = problem.New(problem.Internal, "", problem.Unexpected)
		}
	}()
	return do(ctx, who)
}

// progressTo tells a client how far its request is, where it wants to know.
func progressTo(session *sdk.ServerSession, params sdk.Params) func(ctx context.Context, done, of float64, what string) {
	token := params.GetMeta()["progressToken"]
	if token == nil {
		return func(context.Context, float64, float64, string) {}
	}
	return func(ctx context.Context, done, of float64, what string) {
		// A client that does not read it hears of the end all the same.
		_ = session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: of, Message: what})
	}
}

// names are those of the tool's arguments.
func (t tool) names() (out []string) {
	for _, property := range t.takes {
		out = append(out, strings.Split(property, `"`)[1])
	}
	return out
}

// check refuses an argument that the tool does not list: the types that read them have fields that tools do not take, such
// as whose a new session is. Of arguments that cannot be read [arguments] says why.
func (t tool) check(raw []byte) error {
	var given map[string]jsontext.Value
	if t.foreign || json.Unmarshal(raw, &given) != nil {
		return nil
	}
	names := t.names()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(names, name) {
			return noArgument(name)
		}
	}
	return nil
}

// explain names the tool's arguments to who has given it others. A step of a task has those of what it does.
func (t tool) explain(err error) error {
	p, ok := problem.As(err)
	if !ok || p.Hint != inToolsList || strings.HasPrefix(p.Message, "step ") {
		return err
	}
	names := t.names()
	hint := t.name + " takes " + strings.Join(names, ", ")
	if len(names) == 0 {
		hint = t.name + " takes no arguments"
	}
	return problem.Wrap(err, p.Code, hint, "%s", p.Message)
}

// target finds the browser that a call is for.
func (s *Server) target(ctx context.Context, c *call, w where) (Target, error) {
	switch w.Target {
	case "", "session":
		id, err := s.sessionOf(ctx, c, w.Session)
		return Target{Session: id}, err
	case "host":
		if w.Session != "" {
			return Target{}, problem.New(problem.BadRequest, "leave one of them out", "session and the target host exclude each other")
		}
		if !s.Backend.Host() {
			return Target{}, problem.New(problem.Unsupported, "leave target out and open a session with browser_open_session",
				"there is no host browser to drive here")
		}
		return Target{Host: true}, nil
	}
	return Target{}, problem.New(problem.BadRequest, "target is session or host", "there is no such target")
}

// sessionOf is the session that a call names, or the only one that its conversation has open.
func (s *Server) sessionOf(ctx context.Context, c *call, id string) (string, error) {
	if id != "" {
		return id, nil
	}
	if c.talk == nil {
		return "", problem.New(problem.BadRequest, "pass the id that browser_open_session answered", "session is missing")
	}
	open := c.talk.open()
	if len(open) > 1 {
		// Some may have ended by themselves.
		if listed, err := s.Backend.List(ctx, c.by); err == nil {
			for _, id := range open {
				if !slices.ContainsFunc(listed, func(l session.Session) bool { return l.ID == id }) {
					c.talk.closed(id)
				}
			}
			open = c.talk.open()
		}
	}
	switch len(open) {
	case 0:
		return "", problem.New(problem.BadRequest, "open one with browser_open_session, or pass the id of one as session", "no session is open")
	case 1:
		return open[0], nil
	}
	return "", problem.New(problem.BadRequest, "pass one of them as session: "+line(fmt.Sprint(open), 400), "%d sessions are open", len(open))
}

// drive runs an operation, and returns its result as what it is.
func drive[T any](ctx context.Context, s *Server, c *call, t Target, op browser.Operation) (T, error) {
	var none T
	if err := op.Validate(); err != nil {
		return none, err
	}
	out, err := s.Backend.Drive(ctx, c.by, t, op)
	if err != nil {
		if gone(err) {
			c.talk.closed(t.Session)
		}
		return none, err
	}
	switch v := out.(type) {
	case T:
		return v, nil
	case *T:
		if v != nil {
			return *v, nil
		}
	}
	return none, fmt.Errorf("%s answered %T", op.Tool(), out)
}

// gone says that an error is of a session that has ended.
func gone(err error) bool {
	switch problem.CodeOf(err) {
	case problem.SessionClosed, problem.BrowserExited, problem.LimitMemory, problem.LimitWallClock:
		return true
	}
	return false
}

// words say what went wrong: as code, message and hint, and as a text. The cause is for the log.
func (s *Server) words(what string, err error) (said map[string]string, text string) {
	code, message, hint := problem.CodeOf(err), "", ""
	p, ok := problem.As(err)
	switch {
	case ok:
		message, hint = p.Message, p.Hint
	case code == problem.Timeout:
		message, hint = "it took longer than it may", "give it more time with timeoutMs, or do less at once"
	case code == problem.Canceled:
		message = "it was canceled"
	default:
		message = problem.Unexpected
	}
	if code == problem.Internal {
		s.Log.Error("mcp: a call failed", "of", what, "error", err)
	}
	said = map[string]string{"code": code, "message": clip(message, maxError)}
	text = "error " + code + ": " + said["message"]
	if hint != "" {
		said["hint"] = clip(hint, maxError)
		text += "\nhint: " + said["hint"]
	}
	if ok {
		text += printedBy(p)
	}
	return said, text
}

// failure is what went wrong with a call of a tool, for a model.
func (s *Server) failure(tool string, err error) *sdk.CallToolResult {
	said, text := s.words(tool, err)
	out := answer(text)
	out.IsError, out.StructuredContent = true, said
	return out
}

// answer is a result that is a text.
func answer(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

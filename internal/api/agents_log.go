package api

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
)

const (
	// maxTyped bounds what is typed to an agent at once, and maxHook the body of a webhook.
	maxTyped = 1 << 20
	maxHook  = 1 << 20
	// maxLog bounds a piece of a log, and maxLogWait the wait for one.
	maxLog     = 4 << 20
	maxLogWait = time.Minute
	// bytesType is a body of any bytes.
	bytesType = "application/octet-stream"
)

// Headers of an answer with a piece of a log. They count bytes since the agent was declared first.
const (
	LogOffsetHeader = "Clawjail-Log-Offset" // of the first byte of the answer
	LogFirstHeader  = "Clawjail-Log-First"  // of the oldest byte that is kept
	LogEndHeader    = "Clawjail-Log-End"    // behind the newest
	// LogTimesHeader has the times of what was printed, as [FormatLogTimes] writes them.
	LogTimesHeader = "Clawjail-Log-Times"
	// AnsweredByHeader says that an answer is the agent's own, and not one of the control plane's.
	AnsweredByHeader = "Clawjail-Answered-By"
)

type (
	agentLogInput struct {
		Name   string `path:"name" maxLength:"64" doc:"the agent's name"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
		Stream string `query:"stream" enum:"stdout,stderr" default:"stdout"`
		Offset int64  `query:"offset" doc:"where to begin; a negative one counts from the end"`
		Limit  int    `query:"limit" minimum:"0" maximum:"4194304" doc:"how many bytes at most; 256 KiB when it is left out"`
		Wait   string `query:"wait" maxLength:"20" doc:"how long to wait for new output, such as 30s; at most 1m"`
		Times  bool   `query:"times" doc:"send the times of printing in Clawjail-Log-Times; the answer is shorter where they change often"`
	}

	agentLog struct {
		ContentType string `header:"Content-Type"`
		Offset      int64  `header:"Clawjail-Log-Offset" doc:"of the first byte here: how many bytes were printed before it since the agent was first declared"`
		First       int64  `header:"Clawjail-Log-First" doc:"the offset of the oldest byte that is kept"`
		End         int64  `header:"Clawjail-Log-End" doc:"the offset behind the newest byte"`
		Times       string `header:"Clawjail-Log-Times" doc:"with times: OFFSET@TIME of each part, with commas between; times are nanoseconds of Unix time"`
		Body        []byte
	}
)

func (a *API) agentLogRoutes() {
	add(a, route{method: http.MethodGet, path: ofAgent + "/log", id: "agent-log", summary: "What an agent's jails have printed"}, a.agentLog)
	a.rawBody(route{method: http.MethodPost, path: ofAgent + "/stdin", id: "type-to-agent", summary: "Write to the stdin of an agent's jail", status: http.StatusOK},
		maxTyped, identity.AgentType, []*huma.Param{agentNameParam(), tenantParam()}, "application/json", a.schema(reflect.TypeFor[Written]()), a.typeTo)
	a.rawBody(route{method: http.MethodPost, path: ofAgent + "/webhook", id: "agent-webhook", summary: "Send a request to port 8000 of an agent's jail", status: http.StatusOK},
		maxHook, identity.AgentWebhook, []*huma.Param{agentNameParam(), tenantParam()}, bytesType, binary(), a.agentWebhook)
}

func (a *API) agentLog(ctx context.Context, by identity.Principal, in *agentLogInput) (*agentLog, error) {
	wait := time.Duration(0)
	if in.Wait != "" {
		var err error
		if wait, err = time.ParseDuration(in.Wait); err != nil || wait < 0 || wait > maxLogWait {
			return nil, problem.New(problem.BadLimit, "give a time such as 30s, at most 1m", "the wait %s is not valid", quote(in.Wait))
		}
	}
	ctx, release := untilTheEnd(ctx)
	defer release()
	chunk, err := a.Agents.ReadLog(ctx, by, jail.LogRequest{
		Tenant: by.TenantOr(in.Tenant), Name: in.Name, Stream: jail.Stream(in.Stream), Offset: in.Offset, Limit: in.Limit, Wait: wait,
		Times: in.Times})
	if err != nil {
		return nil, err
	}
	if len(chunk.Marks) > maxLogTimes {
		chunk.Data = chunk.Data[:chunk.Marks[maxLogTimes].Offset-chunk.Offset]
		chunk.Marks = chunk.Marks[:maxLogTimes]
	}
	// A browser must take it neither for a page nor for anything that is run.
	return &agentLog{ContentType: bytesType, Offset: chunk.Offset, First: chunk.First, End: chunk.End, Times: FormatLogTimes(chunk.Marks), Body: list(chunk.Data)}, nil
}

// maxLogTimes bounds the times of one answer: they are in a header.
const maxLogTimes = 128

// FormatLogTimes writes times for a header.
func FormatLogTimes(marks []ringlog.Mark) string {
	var out []byte
	for n, m := range marks {
		if n > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(append(strconv.AppendInt(out, m.Offset, 10), '@'), m.At, 10)
	}
	return string(out)
}

// ParseLogTimes reads what [FormatLogTimes] has written.
func ParseLogTimes(text string) (out []ringlog.Mark, ok bool) {
	if text == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		offset, at, _ := strings.Cut(part, "@")
		m := ringlog.Mark{}
		var err1, err2 error
		m.Offset, err1 = strconv.ParseInt(offset, 10, 64)
		m.At, err2 = strconv.ParseInt(at, 10, 64)
		if err1 != nil || err2 != nil || m.Offset < 0 || m.At < 0 || len(out) > 0 && out[len(out)-1].Offset >= m.Offset {
			return nil, false
		}
		out = append(out, m)
	}
	return out, true
}

// untilTheEnd is a context that ends as well when the server is to end, for what waits.
func untilTheEnd(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() bool { return true }
	if ending, ok := Ending(ctx); ok {
		stop = context.AfterFunc(ending, func() { cancel(errEnding) })
	}
	return ctx, func() { stop(); cancel(nil) }
}

// ofOneAgent reads the address of a route that writes its answer itself.
func ofOneAgent(req *http.Request, by identity.Principal) (tenant, name string, err error) {
	tenant = req.URL.Query().Get("tenant")
	if len(req.PathValue("name")) > maxAgentName {
		return "", "", problem.New(problem.BadRequest, "list them: clawjail agent ls", "no agent has a name of more than %d bytes", maxAgentName)
	}
	return by.TenantOr(tenant), req.PathValue("name"), op.CheckTenant(tenant)
}

// typeTo writes to the stdin of an agent's jail, or of the program that the address names.
func (a *API) typeTo(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	tenant, name, err := ofOneAgent(req, by)
	if err != nil {
		return err
	}
	data, err := rawBody(req, maxTyped)
	if err != nil {
		return err
	}
	n, err := a.Agents.Type(req.Context(), by, tenant, name, req.PathValue("id"), data)
	if err != nil {
		if p, ok := problem.As(err); ok && n > 0 {
			err = p.With("written", n)
		}
		return err
	}
	return control.Write(w, req, Written{Bytes: n}, nil)
}

// rawBody reads a body of bytes.
func rawBody(req *http.Request, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(req.Body, int64(limit)+1))
	if err != nil {
		return nil, problem.Wrap(err, problem.BadRequest, "send it again", "the body did not arrive")
	}
	if len(data) > limit {
		return nil, tooLarge(int64(limit))
	}
	return data, nil
}

func (a *API) agentWebhook(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	tenant, name, err := ofOneAgent(req, by)
	if err != nil {
		return err
	}
	data, err := rawBody(req, maxHook)
	if err != nil {
		return err
	}
	out, err := a.Agents.Webhook(req.Context(), by, tenant, name, agent.WebhookCall{ContentType: req.Header.Get("Content-Type"), Body: data})
	if err != nil {
		return err
	}
	if out.Status < http.StatusOK || out.Status > 599 {
		return problem.New(problem.UpstreamFailed, "look at what the agent prints: clawjail agent logs NAME", "the agent answered with %d, which is not an HTTP status", out.Status)
	}
	h := w.Header()
	h.Set(AnsweredByHeader, "agent")
	h.Set("Content-Type", harmlessType(out.ContentType))
	// An agent wrote it. No browser is to run it under the name of this server.
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Content-Disposition", "attachment")
	w.WriteHeader(out.Status)
	if out.Status == http.StatusNoContent || out.Status == http.StatusNotModified {
		return nil
	}
	if _, err := w.Write(out.Body); err != nil {
		a.Log.Debug("answer a webhook", "error", err) // the caller has gone
	}
	return nil
}

// harmlessType is a kind of content that no browser runs.
func harmlessType(said string) string {
	kind, _, _ := strings.Cut(said, ";")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); kind {
	case "application/json", "text/plain":
		return kind
	}
	return bytesType
}

package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// ofAgent is below what is about one agent.
	ofAgent = "/v1/agents/{name}"
	// maxSync bounds the body with a file: a text of a megabyte, as JSON writes it.
	maxSync = 4 << 20
	// maxAgentName bounds the name of an agent in an address.
	maxAgentName = 64
)

// agentRoutes are those about the jails of agents.
func (a *API) agentRoutes() {
	sync := route{method: http.MethodPost, path: "/v1/agents/sync", id: "sync-agents", summary: "Make the machine match a file",
		status: http.StatusOK, body: reflect.TypeFor[agent.SyncRequest]()}
	a.large[sync.method+" "+sync.path] = large{limit: maxSync, may: identity.AgentSync}
	a.plain(sync, []*huma.Param{progressParam()}, a.planAnswers(), a.syncAgents)
	a.plain(route{method: http.MethodPost, path: ofAgent + "/declare", id: "declare-agent", summary: "Declare one agent, beside what is declared",
		status: http.StatusOK, body: reflect.TypeFor[DeclareRequest]()}, []*huma.Param{agentNameParam(), progressParam()}, a.planAnswers(), a.declareAgent)
	provide(a, op.ShowAgent())
	provide(a, op.RestartAgent())
	a.agentLogRoutes()
	a.addProcesses()
}

// planAnswers describes the two forms of a plan.
func (a *API) planAnswers() map[string]*huma.Schema {
	return map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[agent.Plan]()), linesType: a.schema(reflect.TypeFor[SyncLine]())}
}

func progressParam() *huma.Param {
	return &huma.Param{Name: "progress", In: "query", Schema: &huma.Schema{Type: huma.TypeBoolean},
		Description: "answer line by line, as steps are done; so does Accept: " + linesType}
}

func agentNameParam() *huma.Param {
	limit := maxAgentName
	return &huma.Param{Name: "name", In: "path", Required: true, Description: "the agent's name", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &limit}}
}

func tenantParam() *huma.Param {
	return &huma.Param{Name: "tenant", In: "query", Schema: &huma.Schema{Type: huma.TypeString, Pattern: "^[a-z0-9-]{1,40}$"},
		Description: "the caller's own, or default, when it is left out"}
}

// planBody reads a request that is answered with a plan, and whether it is to be told line by line.
func planBody[T any](req *http.Request) (body T, lined bool, err error) {
	if lined, err = wantsLines(req); err != nil {
		return body, lined, err
	}
	text, err := bodyOf(req)
	if err != nil {
		return body, lined, err
	}
	if tooMuch := yamldoc.Fits(text); tooMuch != nil {
		return body, lined, problem.New(tooMuch.Code, "send less", "the body %s", tooMuch.Message)
	}
	body, err = decode[T](text)
	return body, lined, err
}

// mayDeclare is asked before the body is read, which says for which tenant: an admin of all may for each.
func (a *API) mayDeclare(req *http.Request, by identity.Principal) error {
	return a.Identity.Authorize(req.Context(), by, identity.AgentSync, by.TenantOr(""))
}

func (a *API) syncAgents(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	if err := a.mayDeclare(req, by); err != nil {
		return err
	}
	request, lined, err := planBody[agent.SyncRequest](req)
	if err != nil {
		return err
	}
	if err := op.CheckTenant(request.Tenant); err != nil {
		return err
	}
	request.Tenant = by.TenantOr(request.Tenant)
	return a.planned(w, req, "Make the machine match a file", lined, func(ctx context.Context, progress func(agent.Step)) (agent.Plan, error) {
		return a.Agents.Sync(ctx, by, request, progress)
	})
}

func (a *API) declareAgent(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	if err := a.mayDeclare(req, by); err != nil {
		return err
	}
	body, lined, err := planBody[DeclareRequest](req)
	if err != nil {
		return err
	}
	if err := op.CheckTenant(body.Tenant); err != nil {
		return err
	}
	read := func() (clawbots.Agent, error) { return body.Read(req.PathValue("name")) }
	return a.planned(w, req, "Declare an agent", lined, func(ctx context.Context, progress func(agent.Step)) (agent.Plan, error) {
		return a.Agents.Declare(ctx, by, by.TenantOr(body.Tenant), read, body.Replace, progress)
	})
}

// Read makes the declaration of an agent, as the reader of files does.
func (r DeclareRequest) Read(name string) (clawbots.Agent, error) {
	text, err := r.entry(name)
	if err != nil {
		return clawbots.Agent{}, err
	}
	dir := r.Dir
	if dir == "" {
		if at, ok := r.Agent["workspace"].(string); ok && !path.IsAbs(at) {
			return clawbots.Agent{}, problem.New(problem.BadRequest, "give an absolute path, or say in dir where it starts", "the workspace %s is relative", quote(at))
		}
		dir = "/" // nothing starts there
	}
	file, err := clawbots.Parse("the declaration", text, dir)
	if err != nil {
		return clawbots.Agent{}, err
	}
	if len(file.Agents) != 1 {
		return clawbots.Agent{}, problem.New(problem.BadRequest, "declare one agent", "the declaration is of %d agents", len(file.Agents))
	}
	return file.Agents[0], nil
}

// wantsLines says whether the answer is to come line by line.
func wantsLines(req *http.Request) (bool, error) {
	if wanted, err := boolean(req.URL.Query(), "progress"); wanted || err != nil {
		return wanted, err
	}
	for _, accepted := range req.Header.Values("Accept") {
		for kind := range strings.SplitSeq(accepted, ",") {
			if kind, _, _ = strings.Cut(kind, ";"); strings.EqualFold(strings.TrimSpace(kind), linesType) {
				return true, nil
			}
		}
	}
	return false, nil
}

// bodyOf reads a body that was bounded before.
func bodyOf(req *http.Request) ([]byte, error) {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadRequest, "send it again", "the body did not arrive")
	}
	return text, nil
}

// planned answers with a plan. A step that failed says so itself; an error is of what kept all of it from being done.
func (a *API) planned(w http.ResponseWriter, req *http.Request, doing string, lined bool,
	do func(context.Context, func(agent.Step)) (agent.Plan, error)) error {
	return told(a, w, req, doing, lined, func(ctx context.Context, tell func(agent.Step) error) (agent.Plan, error) {
		plan, err := do(ctx, func(s agent.Step) { _ = tell(s) }) // the client has gone; what was begun is done all the same
		if hasFailed(plan) {
			err = nil
		}
		plan.Steps = list(plan.Steps)
		return plan, err
	}, func(s *agent.Step, p *agent.Plan, wrong *Problem) any { return SyncLine{s, p, wrong} })
}

// told answers with what something has come to; when lines are wanted, with its steps as they are done, and what it has come to, or what
// was wrong, in the last line. Of a step that nobody reads any more, tell returns an error.
func told[S, R any](a *API, w http.ResponseWriter, req *http.Request, doing string, lined bool,
	do func(ctx context.Context, tell func(S) error) (R, error), line func(*S, *R, *Problem) any) error {
	if !lined {
		out, err := do(req.Context(), func(S) error { return nil })
		if err != nil {
			return err
		}
		return control.Write(w, req, out, nil)
	}
	a.pour(req.Context(), w, req, doing, http.Header{"Content-Type": {linesType}}, func(ctx context.Context, out *lines) error {
		var lost error
		say := func(step *S, result *R, wrong *Problem) error {
			if lost == nil {
				lost = out.line(line(step, result, wrong))
			}
			return lost
		}
		result, err := do(ctx, func(s S) error { return say(&s, nil, nil) })
		switch {
		case err == nil:
			return say(nil, &result, nil)
		case !out.begun:
			return err
		}
		p, _ := a.failed(ctx, doing, err).(*Problem) // it is always one
		return say(nil, nil, p)
	})
	return nil
}

// line writes one JSON value, which the client has at once.
func (l *lines) line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := l.Write(append(text, '\n')); err != nil {
		return err
	}
	return l.flush()
}

// hasFailed says whether a step of a plan was not done.
func hasFailed(p agent.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(s agent.Step) bool { return s.Code != "" || s.Problem != "" })
}

package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// AccessQuestion is the body with which an agent asks for access.
type AccessQuestion struct {
	Kind   egress.AccessKind `json:"kind" enum:"host,tool,service,account"`
	Target string            `json:"target" doc:"of a host: its name, with a port or as a URL; of a tool: METHOD URL SERVICE, which is whose credential is used; of a service: its name; of an account: its domain, with cdp behind it for DevTools clients"`
	Reason string            `json:"reason" doc:"for the operator, in a sentence"`
	Wait   string            `json:"wait,omitempty" doc:"how long to wait for the answer, such as 2m; at most 5m; not at all when it is left out"`
}

// AccessRequests is the answer to a listing.
type AccessRequests struct {
	Requests []egress.AccessRequest `json:"requests" nullable:"false"`
}

type (
	accessListInput struct {
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, all"`
		All    bool   `query:"all" doc:"also those that are answered or have expired"`
	}

	accessInput struct {
		ID   string `path:"id" maxLength:"64" doc:"the request's id"`
		Wait string `query:"wait" maxLength:"20" doc:"how long to wait for its answer, such as 30s; at most 5m"`
	}

	accessBody struct {
		ID      string `path:"id" maxLength:"64" doc:"the request's id"`
		RawBody []byte `contentType:"application/json"`
	}
)

func (a *API) accessRoutes() {
	add(a, route{method: http.MethodPost, path: "/v1/access-requests", id: "ask-for-access", summary: "Ask the operator for access, as an agent",
		status: http.StatusOK, body: reflect.TypeFor[AccessQuestion]()}, a.ask)
	add(a, route{method: http.MethodGet, path: "/v1/access-requests", id: "list-access-requests", summary: "List what agents ask for"}, a.accessRequests)
	add(a, route{method: http.MethodGet, path: "/v1/access-requests/{id}", id: "get-access-request", summary: "Show what an agent asks for"}, a.accessRequest)
	add(a, route{method: http.MethodPost, path: "/v1/access-requests/{id}/answer", id: "answer-access-request", summary: "Approve or refuse",
		status: http.StatusOK, body: reflect.TypeFor[AccessAnswer]()}, a.answerAccess)
}

// AccessAnswer is the body with which an operator answers. Whoever says nothing has not refused.
type AccessAnswer struct {
	Approve *bool  `json:"approve" doc:"true approves, false refuses"`
	Once    bool   `json:"once,omitzero" doc:"of an approval: for one request"`
	For     string `json:"for,omitempty" doc:"of an approval: for how long, such as 1h; with neither, for good"`
	Comment string `json:"comment,omitempty" doc:"the agent is shown it"`
}

// maxWait is the longest wait for an answer.
const maxWait = 5 * time.Minute

// waiting reads how long somebody wants to wait.
func waiting(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxWait {
		return 0, problem.New(problem.BadLimit, "give a time such as 30s, at most 5m", "the wait %s is not possible", quote(text))
	}
	return d, nil
}

func (a *API) ask(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[egress.AccessRequest], error) {
	body, err := decode[AccessQuestion](in.RawBody)
	if err != nil {
		return nil, err
	}
	wait, err := waiting(body.Wait)
	if err != nil {
		return nil, err
	}
	out, err := a.Egress.Ask(ctx, by, body.Kind, body.Target, body.Reason, wait)
	if err != nil {
		return nil, err
	}
	return &answer[egress.AccessRequest]{out}, nil
}

func (a *API) accessRequests(ctx context.Context, by identity.Principal, in *accessListInput) (*answer[AccessRequests], error) {
	all, err := a.Egress.AccessRequests(ctx, by, by.Among(in.Tenant), in.All)
	if err != nil {
		return nil, err
	}
	return &answer[AccessRequests]{AccessRequests{Requests: listed(all)}}, nil
}

func (a *API) accessRequest(ctx context.Context, by identity.Principal, in *accessInput) (*answer[egress.AccessRequest], error) {
	wait, err := waiting(in.Wait)
	if err != nil {
		return nil, err
	}
	out, err := a.Egress.AccessRequest(ctx, by, in.ID, wait)
	if err != nil {
		return nil, err
	}
	return &answer[egress.AccessRequest]{out}, nil
}

func (a *API) answerAccess(ctx context.Context, by identity.Principal, in *accessBody) (*answer[egress.AccessRequest], error) {
	body, err := decode[AccessAnswer](in.RawBody)
	if err != nil {
		return nil, err
	}
	if body.Approve == nil {
		return nil, problem.New(problem.BadRequest, "send approve as true or false", "nothing was answered")
	}
	out, err := a.Egress.Answer(ctx, by, in.ID, egress.AccessAnswer{Approve: *body.Approve, Once: body.Once, For: body.For, Comment: body.Comment})
	if err != nil {
		return nil, err
	}
	return &answer[egress.AccessRequest]{out}, nil
}

package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// Health says that the control plane answers.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// Info is what is known of the installation.
type Info struct {
	Version string         `json:"version"`
	Service session.Status `json:"service"`
	// Host is missing while the host daemon does not answer: sessions run on then, and none can be opened.
	Host *HostInfo `json:"host,omitempty" doc:"missing while the host daemon does not answer, and for principals of one tenant"`
}

type (
	nothing struct{}

	answer[T any] struct{ Body T }

	picture struct {
		ContentType string `header:"Content-Type"`
		Body        []byte
	}

	getInput = op.SessionNamed

	// sessionBody is a request about a session, with a body.
	sessionBody struct {
		ID      string `path:"id" maxLength:"64" doc:"the session's id"`
		RawBody []byte `contentType:"application/json"`
	}

	recordedInput struct {
		ID     string `path:"id" maxLength:"64" doc:"the session's id"`
		Number int    `path:"number" minimum:"1"`
	}
)

// route is one operation of the API.
type route struct {
	method, path, id, summary string
	status                    int
	body                      reflect.Type       // of a JSON body
	jars                      identity.Operation // a caller with this right may send a body with cookies
	lines                     reflect.Type       // the answer is one of these a line
	images                    bool               // the answer is a picture
	free                      bool               // needs no key
}

// operation describes a route to huma.
func (a *API) operation(r route) huma.Operation {
	registry := a.api.OpenAPI().Components.Schemas
	op := huma.Operation{
		Method: r.method, Path: r.path, OperationID: r.id, Summary: r.summary, DefaultStatus: r.status,
		MaxBodyBytes: maxBody + 1, BodyReadTimeout: bodyTimeout,
		// Decoded by its handler, with positions.
		SkipValidateBody: true,
		Responses: map[string]*huma.Response{"default": {
			Description: "Error",
			Content:     map[string]*huma.MediaType{problemType: {Schema: registry.Schema(reflect.TypeFor[Problem](), true, "Problem")}},
		}},
	}
	if r.jars != "" {
		op.MaxBodyBytes, op.BodyReadTimeout = maxJar+1, jarTimeout
		a.large[r.method+" "+r.path] = large{limit: maxJar, may: r.jars}
	}
	if r.lines != nil {
		op.Responses["200"] = &huma.Response{Description: "OK", Content: map[string]*huma.MediaType{
			linesType: {Schema: registry.Schema(r.lines, true, r.lines.Name())}}}
	}
	if r.free {
		op.Security = []map[string][]string{}
	}
	if r.images {
		binary := &huma.MediaType{Schema: &huma.Schema{Type: "string", Format: "binary"}}
		op.Responses["200"] = &huma.Response{Description: "OK", Content: map[string]*huma.MediaType{"image/png": binary, "image/jpeg": binary}}
	}
	if r.body != nil {
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{
			"application/json": {Schema: registry.Schema(r.body, true, r.body.Name())}}}
	}
	return op
}

// add registers a route. Its handler is told who asks. huma takes the body of a route as bytes, and describes it as such; what the bytes hold is
// described here.
func add[I, O any](a *API, r route, handle func(context.Context, identity.Principal, *I) (*O, error)) {
	op := a.operation(r)
	huma.Register(a.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, caller(ctx), in)
		if err != nil {
			return nil, a.failed(ctx, r.summary, err)
		}
		return out, nil
	})
	if r.body != nil {
		schema := a.api.OpenAPI().Components.Schemas.Schema(r.body, true, r.body.Name())
		op.RequestBody.Content["application/json"] = &huma.MediaType{Schema: schema}
		op.RequestBody.Required = false
	}
}

func (a *API) routes() {
	add(a, route{method: http.MethodGet, path: "/v1/health", id: "health", summary: "Say that the control plane answers", free: true},
		func(context.Context, identity.Principal, *nothing) (*answer[Health], error) {
			return &answer[Health]{Health{Status: "ok"}}, nil
		})
	add(a, route{method: http.MethodGet, path: "/v1/ready", id: "ready", summary: "Say that sessions can be opened here", free: true},
		func(context.Context, identity.Principal, *nothing) (*answer[Health], error) {
			return &answer[Health]{Health{Status: "ok"}}, a.Sessions.Ready()
		})
	add(a, route{method: http.MethodGet, path: "/v1/info", id: "info", summary: "Say what runs here"}, a.info)
	provide(a, op.OpenSession())
	provide(a, op.ListSessions())
	provide(a, op.ShowSession())
	provide(a, op.CloseSession())
	provide(a, op.TakeOver())
	provide(a, op.HandBack())
	add(a, route{method: http.MethodGet, path: "/v1/sessions/{id}/screenshots/{number}", id: "recorded-screenshot",
		summary: "A screenshot that was kept", images: true}, a.recorded)
	if a.Status != nil {
		a.statusRoutes()
	}
	a.driveRoutes()
	a.devtoolsRoutes()
	a.liveRoutes()
	a.refreshRoutes()
	a.accountRoutes()
	a.auditRoutes()
	a.peopleRoutes()
	if a.Agents != nil {
		a.agentRoutes()
	}
	if a.Servers != nil {
		provide(a, op.ListMCPServers())
		provide(a, op.PutMCPServer())
		provide(a, op.TestMCPServer())
		provide(a, op.RemoveMCPServer())
	}
	if a.Tasks != nil {
		a.taskRoutes()
	}
	if a.SignIn != nil {
		a.signInRoutes()
	}
	provide(a, op.ListSignIns())
	provide(a, op.EndSignIn())
	a.egressRoutes()
	a.aliasRoutes()
}

func (a *API) info(ctx context.Context, by identity.Principal, _ *nothing) (*answer[Info], error) {
	if err := a.Identity.Authorize(ctx, by, identity.InfoRead, by.TenantOr("")); err != nil {
		return nil, err
	}
	if by.Tenant != "" {
		// A caller of one tenant does not learn what other tenants do here.
		own, err := a.Sessions.List(ctx, by, "", false)
		if err != nil && problem.CodeOf(err) != problem.NodeUnreachable {
			return nil, err
		}
		return &answer[Info]{Info{Version: a.Version, Service: session.Status{Sessions: len(own), MaxSessions: a.Sessions.Status().MaxSessions}}}, nil
	}
	out := Info{Version: a.Version, Service: a.Sessions.Status()}
	if host, err := a.Host(ctx); err == nil {
		out.Host = &host
	} else {
		a.Log.Warn("ask the host daemon what it is", "error", err)
	}
	return &answer[Info]{out}, nil
}

func (a *API) recorded(ctx context.Context, by identity.Principal, in *recordedInput) (*picture, error) {
	data, format, err := a.Sessions.Recorded(ctx, by, in.ID, in.Number)
	if err != nil {
		return nil, err
	}
	return &picture{ContentType: "image/" + format, Body: data}, nil
}

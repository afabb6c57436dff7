package api

import (
	"context"
	"reflect"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
)

// provide registers an operation that is described.
func provide[In, Out any](a *API, o op.Op[In, Out]) {
	r := route{method: o.Method, path: o.Path, id: o.ID, summary: o.Summary, status: o.Row().Status}
	if content := op.Content(*new(In)); content != nil {
		r.body = reflect.TypeOf(content)
	}
	if _, none := any(*new(Out)).(op.None); none {
		add(a, r, func(ctx context.Context, by identity.Principal, in *In) (*nothing, error) {
			_, err := called(ctx, a, o, by, in)
			return nil, err
		})
		return
	}
	add(a, r, func(ctx context.Context, by identity.Principal, in *In) (*answer[Out], error) {
		out, err := called(ctx, a, o, by, in)
		return &answer[Out]{out}, err
	})
}

func called[In, Out any](ctx context.Context, a *API, o op.Op[In, Out], by identity.Principal, in *In) (out Out, err error) {
	if body, ok := any(in).(interface{ Flaw() error }); ok {
		if err := body.Flaw(); err != nil {
			return out, err
		}
	}
	return o.Call(ctx, op.Backend{People: a.Identity, Health: a.Status, Nodes: a.Nodes, Egress: a.Egress, Credentials: a.Credentials, Audit: a.auditor(),
		Agents: a.Agents, Sessions: a.Sessions, SignIns: a.SignIn, Servers: a.Servers, Now: a.Now, Failed: a.failed}, by, *in)
}

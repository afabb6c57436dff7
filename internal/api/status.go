package api

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
)

// Statuses says how everything is doing. *health.Service is one.
type Statuses interface {
	Status(ctx context.Context, by identity.Principal) (health.Status, error)
	op.Health
}

// InstallationStatus is how everything is doing, under a name of its own in the description.
type InstallationStatus health.Status

func (a *API) statusRoutes() {
	add(a, route{method: http.MethodGet, path: "/v1/status", id: "status", summary: "How everything is doing, and what needs somebody"}, a.status)
}

func (a *API) status(ctx context.Context, by identity.Principal, _ *nothing) (*answer[InstallationStatus], error) {
	out, err := a.Status.Status(ctx, by)
	if err != nil {
		return nil, err
	}
	return &answer[InstallationStatus]{InstallationStatus(out)}, nil
}

package doctor

import (
	"context"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/template"
)

// withAPI asks the API server of the configuration something.
func withAPI[T any](t *trial, ask func(context.Context, *kubernetes.API) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (none T, err error) {
		access, err := hostd.ClusterAccess(t.c.Kubernetes)
		if err != nil {
			return none, err
		}
		api, err := kubernetes.NewAPI(access)
		if err != nil {
			return none, err
		}
		defer api.Close()
		return ask(ctx, api)
	}
}

// tryPod has the host daemon start a browser in a pod, the way that sessions do: its first process looks at the rest.
func (t *trial) tryPod(ctx context.Context) (Facts, error) {
	if t.c.Kubernetes.Images[browserTemplate] == "" {
		return nil, problem.New(problem.TemplateMissing, "", "kubernetes.images has no %s", browserTemplate)
	}
	daemon := hostd.NewClient(hostd.SocketPath(t.c), t.log)
	info, err := daemon.Info(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := t.specAt(template.Expected(browserTemplate), info.Gateway)
	if err != nil {
		return nil, err
	}
	if err := daemon.Hold(ctx); err != nil {
		return nil, err
	}
	defer daemon.Close()
	return t.openBrowser(ctx, daemon, spec, func(jail.Name, Facts) error { return nil })
}

package kubernetes

import (
	"context"
	"os"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

// running is the pod of a jail whose program has begun and has not ended.
func (d *Driver) running(name jail.Name) (*pod, jail.Record, error) {
	r, err := d.Running(name)
	if err != nil {
		return nil, r, err
	}
	p := d.podOf(name)
	if p == nil {
		return nil, r, problem.New(problem.Conflict, "start it first", "jail %s does not run", name)
	}
	return p, r, nil
}

// Exec implements jail.Maker.
func (d *Driver) Exec(ctx context.Context, name jail.Name, program jail.Program, stdio [3]*os.File) (jail.Execution, error) {
	if err := program.Validate(); err != nil {
		return nil, err
	}
	p, r, err := d.running(name)
	if err != nil {
		return nil, err
	}
	ends, err := jail.OwnStdio(stdio)
	if err != nil {
		return nil, err
	}
	running, err := p.Run(ctx, shim.Run{Program: program, Home: r.Spec.Kind.Home()}, ends)
	if err != nil {
		return nil, err // an interface of a nil program would not be nil
	}
	return running, nil
}

// Dial implements jail.Maker.
func (d *Driver) Dial(ctx context.Context, name jail.Name, port uint16) (*os.File, error) {
	p, _, err := d.running(name)
	if err != nil {
		return nil, err
	}
	return p.Dial(ctx, port)
}

// Token implements jail.Maker.
func (d *Driver) Token(ctx context.Context, name jail.Name, token []byte) error {
	e, err := d.Lookup(name)
	if err != nil {
		return err
	}
	p := d.podOf(name)
	if r := e.Record(); p == nil || r.Spec.Agent == nil || !r.Spec.Agent.Token {
		return problem.New(problem.Conflict, "", "jail %s has no place for a token", name)
	}
	return p.Token(ctx, token)
}

// HostResources lists the claims of this control plane.
func (d *Driver) HostResources(ctx context.Context) ([]jail.HostResource, error) {
	claims, err := d.followed.names(ctx)
	var out []jail.HostResource
	for _, name := range claims {
		out = append(out, jail.HostResource{Kind: jail.ResourceRuntimeState, Name: jail.Name(name), Index: -1, ID: name})
	}
	return out, err
}

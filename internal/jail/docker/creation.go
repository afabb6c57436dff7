//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// making is what a creation carries from step to step.
type making struct {
	jail.Making
	name    jail.Name
	spec    jail.Spec
	argv    []string // what runs, by the spec or the image
	env     []string // of the image
	ungated bool     // the image has no shell to wait in
	lease   jail.Lease
	profile jail.Profile
	folders *folders
	volume  string
	network network
	bridge  netip.Addr // the host's address on the network
	gateway netip.Addr
	proc    jail.Process
}

// creation is the order in which a container comes to be. Each step is journalled as done before the next begins.
var creation = []jail.Beginning[*Driver, *making]{
	{Step: jail.StepMount, Took: func(t *jail.Timing) *time.Duration { return &t.Clone }, Do: (*Driver).mount},
	{Step: jail.StepClone, State: jail.StateCloned, Took: func(t *jail.Timing) *time.Duration { return &t.Clone }, Do: (*Driver).make},
	{Step: jail.StepStart, State: jail.StateAttached, Took: func(t *jail.Timing) *time.Duration { return &t.Start }, Do: (*Driver).start},
	{Step: jail.StepVerify, Took: func(t *jail.Timing) *time.Duration { return &t.Verify }, Do: (*Driver).verify},
	{Step: jail.StepDeliver, Do: func(_ *Driver, ctx context.Context, _ *jail.Entry, m *making) error { return m.Hand(ctx) }},
	{Step: jail.StepBegin, State: jail.StateStarted, Took: func(t *jail.Timing) *time.Duration { return &t.Start }, Do: (*Driver).begin},
}

// Steps lists the steps that a creation passes a Barrier at.
func Steps() []jail.Step {
	out := []jail.Step{jail.StepReserve}
	for _, s := range creation {
		out = append(out, s.Step)
	}
	return out
}

// Create makes a container without an owner.
func (d *Driver) Create(ctx context.Context, spec jail.Spec) (*jail.Jail, error) {
	return d.CreateFor(ctx, "", spec, func(context.Context, *jail.Jail) error { return nil })
}

// CreateFor implements jail.Maker. The program of an image without /bin/sh has begun by the time that deliver is called.
func (d *Driver) CreateFor(ctx context.Context, owner string, spec jail.Spec, deliver func(context.Context, *jail.Jail) error) (*jail.Jail, error) {
	if err := d.accept(spec); err != nil {
		return nil, err
	}
	argv, env, err := d.image(ctx, spec)
	if err != nil {
		return nil, err
	}
	var e *jail.Entry
	n, err := d.with(ctx, func(*linux.Firewall) (err error) {
		d.o.Barrier(jail.StepReserve)
		e, err = d.enter(owner, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	r := e.Record()
	m := &making{Making: jail.Making{Deliver: deliver}, name: r.Name, spec: spec, argv: argv, env: env, lease: r.Lease, profile: ProfileFor(spec, r.Lease), network: n,
		bridge: n.subnet.Addr().Next(), gateway: d.Gateway()}
	return jail.Make(ctx, d, e, m, creation, func(do func() error) error { return d.engineError(do()) }, d.teardown)
}

// mount opens what the container sees of the host, and makes the volume of the agent's state.
func (d *Driver) mount(ctx context.Context, e *jail.Entry, m *making) (err error) {
	// A container of an earlier process may have had the address, and may have ended while nobody looked after the rules.
	if err := d.refuse(ctx, e, e.Record()); err != nil {
		return err
	}
	if m.folders, err = d.stage(m.name, m.spec, m.profile); err != nil || m.spec.Agent == nil || m.spec.Agent.State == 0 {
		return err
	}
	m.volume, err = d.makeVolume(ctx, *m.spec.Agent)
	return err
}

// make has the engine make the container.
func (d *Driver) make(ctx context.Context, e *jail.Entry, m *making) error {
	options, err := m.container(d.o.Installation)
	if err != nil {
		return err
	}
	if _, err = d.engine.ContainerCreate(ctx, options); err != nil || m.ungated {
		return err
	}
	_, err = d.engine.ContainerStatPath(ctx, string(m.name), client.ContainerStatPathOptions{Path: shellPath})
	if !cerrdefs.IsNotFound(err) {
		return err
	}
	// Such an image has one program, which is looked at as soon as it runs.
	m.ungated = true
	if err := d.remove(ctx, m.name); err != nil {
		return err
	}
	return d.make(ctx, e, m)
}

// start starts the container and finds its first process.
func (d *Driver) start(ctx context.Context, e *jail.Entry, m *making) (err error) {
	if m.spec.Lifetime == jail.LifetimeKeep {
		if err := d.mark(m.name, *m.spec.Agent); err != nil {
			return err
		}
	} else if m.Jail.Stdio, err = d.attach(ctx, m.name); err != nil {
		return err
	}
	_, err = d.engine.ContainerStart(ctx, string(m.name), client.ContainerStartOptions{})
	if err != nil {
		return startError(err)
	}
	got, err := d.engine.ContainerInspect(ctx, string(m.name), client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	state := got.Container.State
	if state == nil || state.Pid <= 0 {
		if state != nil && !state.Running {
			return problem.New(problem.JailFailed, "try the command with `docker run`", "the container's program ended at once, with status %d", state.ExitCode)
		}
		return errors.New("the engine does not say which process the container is")
	}
	m.proc, err = linux.FindProcess(state.Pid)
	if err != nil {
		return problem.Wrap(err, problem.JailFailed, "try the command with `docker run`", "the container's program ended at once")
	}
	e.Change(func(r *jail.Record) { r.Process = m.proc })
	d.watch(e)
	d.follow(e)
	return nil
}

// startError says what is missing. The text is the engine's.
func startError(err error) error {
	if strings.Contains(err.Error(), "docker-init") {
		return problem.Wrap(err, problem.JailFailed, "install docker-init (Debian's package is tini)", "the engine has no first process for containers")
	}
	return err
}

// verify compares the container with its profile, as the kernel shows it. A difference ends it.
func (d *Driver) verify(ctx context.Context, _ *jail.Entry, m *making) error {
	diff, err := Differences(ctx, m.proc, m.profile, m.lease)
	if err != nil {
		return err
	}
	diff = append(diff, m.folders.differences(m.proc)...)
	if len(diff) > 0 {
		return unconfined(diff)
	}
	return nil
}

func unconfined(diff []string) error {
	return problem.New(problem.JailUnconfined, "`clawjail doctor` shows what this host can enforce; an engine that ignores options is not used",
		"the container is not confined as declared: %s", strings.Join(diff, "; "))
}

// begin lets the program begin.
func (d *Driver) begin(ctx context.Context, e *jail.Entry, m *making) error {
	if m.spec.Admit {
		d.o.Barrier(jail.StepAdmit)
		if err := d.open(ctx, m.lease); err != nil {
			return fmt.Errorf("admit: %w", err)
		}
	}
	if m.ungated {
		return nil
	}
	return d.openGate(ctx, m.name, e.Ended())
}

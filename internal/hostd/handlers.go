package hostd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// handler does one operation. It answers, or returns an error that is answered with.
type handler func(s *server, ctx context.Context, c *call) error

// newHandlers makes all there are: one per operation.
func newHandlers() map[Operation]handler {
	all := map[Operation]handler{
		OpInfo:   plain(func(s *server, ctx context.Context, _ noArguments) (any, error) { return s.info(ctx) }),
		OpHold:   (*server).hold,
		OpCreate: (*server).create,
		OpAdmit: named(func(m jail.Maker, ctx context.Context, n jail.Name) (any, error) {
			return noResult{}, m.Admit(ctx, n)
		}),
		OpWait:    named(func(m jail.Maker, ctx context.Context, n jail.Name) (any, error) { return m.Wait(ctx, n) }),
		OpInspect: named(func(m jail.Maker, ctx context.Context, n jail.Name) (any, error) { return m.Inspect(ctx, n) }),
		OpList: plain(func(s *server, ctx context.Context, a listArguments) (any, error) {
			all, err := s.makers.list(ctx)
			if err != nil {
				return nil, err
			}
			part, next, err := page(all, func(s jail.Status) string { return string(s.Name) }, a.Behind, s.ListBytes)
			return listResult{All: part, Next: next}, err
		}),
		OpDestroy: named(func(m jail.Maker, ctx context.Context, n jail.Name) (any, error) {
			return noResult{}, m.Destroy(ctx, n)
		}),
		OpReap:          (*server).reap,
		OpTemplates:     plain(func(s *server, ctx context.Context, _ noArguments) (any, error) { return s.Templates(ctx) }),
		OpHostResources: plain(func(s *server, ctx context.Context, _ noArguments) (any, error) { return s.resources(ctx) }),
		OpCheckpoint:    plain((*server).keep),
		OpComposed:      plain((*server).composed),
		OpShare:         plain((*server).share),
		OpReaped: plain(func(s *server, _ context.Context, a reapedArguments) (any, error) {
			return s.reaped.behind(a.After), nil
		}),
	}
	maps.Copy(all, keeperHandlers())
	return all
}

// plain makes the handler of an operation that takes arguments and gives a result.
func plain[A any](f func(*server, context.Context, A) (any, error)) handler {
	return func(s *server, ctx context.Context, c *call) error {
		a, err := decodeArguments[A](c.request)
		if err != nil {
			return err
		}
		result, err := f(s, ctx, a)
		if err != nil {
			return err
		}
		return c.answer(result)
	}
}

// named makes the handler of an operation on one jail of this installation.
func named(f func(jail.Maker, context.Context, jail.Name) (any, error)) handler {
	return plain(func(s *server, ctx context.Context, a nameArguments) (any, error) {
		m, name, err := s.maker(ctx, a.Name)
		if err != nil {
			return nil, err
		}
		return f(m, ctx, name)
	})
}

// maker is the driver of a jail of this installation.
func (s *server) maker(ctx context.Context, name string) (jail.Maker, jail.Name, error) {
	n, err := jail.ParseName(name, s.Installation)
	if err != nil {
		return nil, "", err
	}
	m, err := s.makers.named(ctx, n)
	return m, n, err
}

func (s *server) info(ctx context.Context) (any, error) {
	all, err := s.makers.list(ctx)
	i := Info{
		Version: s.Version, PID: os.Getpid(), Started: s.started, Installation: s.Installation,
		Subnet: s.Pool.Subnet(), Gateway: s.Pool.Gateway(), Jails: len(all), MaxJails: s.MaxJails,
		Unsandboxed: !s.Parts.Means.UserNamespaces, AppArmor: s.Parts.Means.AppArmor,
	}
	if s.Parts.Gateway.IsValid() {
		i.Gateway = s.Parts.Gateway
	}
	if s.makers.containers != nil {
		i.ContainerGateway = s.makers.containers.Gateway()
	}
	if place, ok := s.makers.life.(interface{ Beside() []string }); ok {
		i.Beside = place.Beside()
	}
	return i, err
}

// composed waits for another list of the containers of docker-compose.
func (s *server) composed(ctx context.Context, a composedArguments) (any, error) {
	if s.makers.containers == nil {
		return nil, problem.New(problem.Unsupported, "containers are kept on Linux", "this host daemon has no containers")
	}
	version, all, err := s.makers.containers.Composed(ctx, a.After)
	return composedResult{Version: version, All: all}, err
}

// hold keeps an owner here for as long as its connection is open and its process lives.
func (s *server) hold(ctx context.Context, c *call) error {
	a, err := decodeArguments[holdArguments](c.request)
	if err != nil {
		return err
	}
	if err := validOwner(a.Owner); err != nil {
		return err
	}
	release, err := s.owners.hold(a.Owner, c.peer)
	if err != nil {
		return err
	}
	defer release()
	if err := c.answer(noResult{}); err != nil {
		return err
	}
	s.Log.Info("owner is here", "peer", c.peer)
	defer func() { s.Log.Info("owner is gone", "peer", c.peer, "grace", s.Grace) }()

	watch, stop := context.WithCancel(ctx)
	died := make(chan error, 1)
	var watching sync.WaitGroup
	watching.Go(func() { died <- untilPeerDies(watch, c.conn) })
	defer watching.Wait()
	defer stop()
	select {
	case err := <-died:
		if err != nil && ctx.Err() == nil {
			s.Log.Debug("cannot watch the process of an owner", "error", err)
			<-ctx.Done()
		}
	case <-ctx.Done():
	}
	return nil
}

// create makes a jail, hands its stdio over and makes sure that it arrived.
func (s *server) create(ctx context.Context, c *call) error {
	a, err := decodeArguments[createArguments](c.request)
	if err != nil {
		return err
	}
	if err := errors.Join(s.owners.has(a.Owner, c.peer), a.Spec.Validate()); err != nil {
		return err
	}
	if a.Spec.Lifetime == jail.LifetimeKeep {
		return problem.New(problem.BadRequest, "declare it with the operation keep", "a jail that is kept has no owner")
	}
	if err := s.bound.room(); err != nil {
		return err
	}
	j, err := s.make(ctx, a, func(ctx context.Context, j *jail.Jail) error { return s.handOver(ctx, c, j) })
	if err != nil {
		return err
	}
	s.Log.Info("jail made", "jail", j.Name, "kind", a.Spec.Kind, "address", j.Lease.Addr, "timing", j.Timing)
	return nil
}

// make makes a jail when it is its turn.
func (s *server) make(ctx context.Context, a createArguments, deliver func(context.Context, *jail.Jail) error) (*jail.Jail, error) {
	leave, err := s.creates.Enter(ctx, a.Spec.Tenant())
	if err != nil {
		return nil, err
	}
	defer leave()
	m, err := s.makers.of(ctx, a.Spec.Image != "")
	if err != nil {
		return nil, err
	}
	return m.CreateFor(ctx, a.Owner, a.Spec, deliver)
}

// handOver sends a jail's stdio to its creator and waits until the creator says that it has it. A caller can
// leave at any moment; without its word, a jail might run whose name no client knows.
func (s *server) handOver(ctx context.Context, c *call, j *jail.Jail) error {
	err := ctx.Err()
	if err == nil {
		err = c.answerWithFiles(created{Name: j.Name, Lease: j.Lease, Timing: j.Timing}, j.Stdio.In, j.Stdio.Out, j.Stdio.Err)
	}
	j.Stdio.Close()
	if err != nil {
		return err
	}
	patience := time.NewTimer(s.Patience)
	defer patience.Stop()
	select {
	case err := <-c.heard:
		return err
	case <-patience.C:
		return problem.New(problem.Timeout, "", "the caller did not confirm that it has the jail's stdio")
	}
}

// reap answers with the report also when something could not be removed: it says what.
func (s *server) reap(ctx context.Context, c *call) error {
	o, err := decodeArguments[jail.ReapOptions](c.request)
	if err != nil {
		return err
	}
	report, err := s.life.Reap(asReaper(ctx), o)
	if !o.DryRun {
		s.reaped.note(report)
	}
	if s.makers.hasContainers(ctx) {
		more, moreErr := s.makers.containers.Reap(asReaper(ctx), o)
		report.Jails += more.Jails
		report.Findings = append(report.Findings, more.Findings...)
		err = errors.Join(err, moreErr)
	}
	r := reapResult{Report: report}
	if err != nil {
		r.Error = toWire(err)
	}
	return c.answer(r)
}

// reapResult is the result of OpReap.
type reapResult struct {
	Report jail.ReapReport `json:"report"`
	Error  *wireError      `json:"error,omitzero"`
}

// resources lists what the parts see, and the records.
func (s *server) resources(ctx context.Context) (any, error) {
	all, err := s.life.HostResources(ctx)
	if err != nil {
		return nil, err
	}
	records, damaged, err := s.Journal.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	for _, r := range records {
		all = append(all, jail.HostResource{Kind: jail.ResourceRecord, Name: r.Name, Index: r.Lease.Index, ID: string(r.Name)})
	}
	for _, n := range damaged {
		all = append(all, jail.HostResource{Kind: jail.ResourceRecord, Name: n, Index: -1, ID: string(n)})
	}
	if s.makers.hasContainers(ctx) {
		more, err := s.makers.containers.HostResources(ctx)
		return append(all, more...), err
	}
	return all, nil
}

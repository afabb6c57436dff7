package hostd

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxChecks bounds one OpCheck.
const maxChecks = 256

// keeperHandlers are those of the operations of jail.Keeper.
func keeperHandlers() map[Operation]handler {
	return map[Operation]handler{
		OpKeep: plain(func(s *server, ctx context.Context, a keepArguments) (any, error) {
			return noResult{}, s.keeper.Keep(ctx, a.Kept, a.Token)
		}),
		OpDrop: plain(func(s *server, ctx context.Context, a dropArguments) (any, error) {
			return noResult{}, s.keeper.Drop(ctx, a.Tenant, a.Name, a.Options)
		}),
		OpKept: plain(func(s *server, ctx context.Context, a keptArguments) (any, error) {
			version, all, err := s.keeper.Kept(ctx, a.After, a.Usage)
			if err != nil {
				return nil, err
			}
			part, next, err := page(all, func(k jail.KeptStatus) string { return k.Spec.Agent.Tenant + "/" + k.Spec.Agent.Name }, a.Behind, s.ListBytes)
			return keptResult{Version: version, All: part, Next: next}, err
		}),
		OpVolumes: plain(func(s *server, _ context.Context, _ noArguments) (any, error) { return s.volumes() }),
		OpCheck:   plain((*server).check),
		OpSetToken: plain(func(s *server, ctx context.Context, a tokenArguments) (any, error) {
			return noResult{}, s.keeper.SetToken(ctx, a.Tenant, a.Name, a.Token)
		}),
		OpHasToken: plain(func(s *server, ctx context.Context, a agentArguments) (any, error) {
			has, err := s.keeper.HasToken(ctx, a.Tenant, a.Name)
			return hasTokenResult{Has: has}, err
		}),
		OpRestart: plain(func(s *server, ctx context.Context, a agentArguments) (any, error) {
			return noResult{}, s.keeper.RestartKept(ctx, a.Tenant, a.Name)
		}),
		OpReadLog: (*server).readLog,
		OpType: plain(func(s *server, ctx context.Context, a typeArguments) (any, error) {
			n, err := s.keeper.Type(ctx, a.Tenant, a.Name, a.Data)
			r := typeResult{Written: n}
			if err != nil {
				r.Error = toWire(err)
			}
			return r, nil
		}),
		OpExec: (*server).exec,
		OpDial: (*server).dialIn,
	}
}

// volumes are those on the disk, and those that agents have left at an engine.
func (s *server) volumes() (map[string]int64, error) {
	all, err := s.keeper.Remains()
	if err != nil || s.Parts.Volumes == nil {
		return all, err
	}
	ours, err := s.Parts.Volumes()
	for key, size := range ours {
		all[key] += size // an agent may have had both
	}
	return all, err
}

// maxReads bounds how many pieces of logs are in memory: each has up to 4 MiB, and a caller may be slow to take it.
const maxReads = 8

// readLog waits for something to be there, and answers with it when it is its turn.
func (s *server) readLog(ctx context.Context, c *call) error {
	r, err := decodeArguments[jail.LogRequest](c.request)
	if err != nil {
		return err
	}
	if r.Wait > 0 {
		first := r
		if r.Limit >= 0 { // what is no limit is refused
			first.Limit = 1
		}
		chunk, err := s.keeper.ReadLog(ctx, first)
		if err != nil {
			return err
		}
		r.Offset, r.Wait = chunk.Offset, 0 // one that counts from the end has a place now
	}
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return ctx.Err()
	}
	chunk, err := s.keeper.ReadLog(ctx, r)
	if err != nil {
		return err
	}
	return c.answer(chunk)
}

func (s *server) check(ctx context.Context, a checkArguments) (any, error) {
	if len(a.All) > maxChecks {
		return nil, problem.New(problem.BadRequest, "ask for fewer at once", "%d declarations are more than %d", len(a.All), maxChecks)
	}
	errs, err := s.keeper.CheckKept(ctx, a.All)
	if err != nil {
		return nil, err
	}
	r := checkResult{Errors: make([]*wireError, len(errs))}
	for i, e := range errs {
		if e != nil {
			r.Errors[i] = toWire(e)
		}
	}
	return r, nil
}

// exec starts a program in a jail, hands its stdio over, and says how it ended. A caller that closes the connection ends it.
func (s *server) exec(ctx context.Context, c *call) (err error) {
	a, err := decodeArguments[execArguments](c.request)
	if err != nil {
		return err
	}
	m, name, err := s.maker(ctx, a.Name)
	if err := errors.Join(err, a.Program.Validate()); err != nil {
		return err
	}
	ends, stdio, err := jail.Pipes()
	if err != nil {
		return err
	}
	x, err := m.Exec(ctx, name, a.Program, ends)
	closeFiles(ends[:])
	if err != nil {
		stdio.Close()
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		if endErr := x.End(end); endErr != nil {
			s.Log.Error("end a program in a jail", "jail", name, "error", endErr)
		}
	}()
	err = c.answerWithFiles(noResult{}, stdio.In, stdio.Out, stdio.Err)
	stdio.Close()
	if err != nil {
		return err
	}
	exit, err := x.Wait(ctx)
	if err != nil {
		return err // the caller is gone, or the connection is what tells it
	}
	return c.answerAgain(execResult{Exit: exit})
}

// dialLimit bounds a connection into a jail.
const dialLimit = 10 * time.Second

// dialIn connects to a port in a jail and hands the connection over.
func (s *server) dialIn(ctx context.Context, c *call) error {
	a, err := decodeArguments[dialArguments](c.request)
	if err != nil {
		return err
	}
	m, name, err := s.maker(ctx, a.Name)
	if err != nil {
		return err
	}
	if a.Port == 0 {
		return problem.New(problem.BadRequest, "name a port", "0 is not a port")
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := m.Dial(ctx, name, a.Port)
	if err != nil {
		return err
	}
	defer conn.Close() // the caller has its own
	return c.answerWithFiles(noResult{}, conn)
}

package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const oneBot = "clawbots:\n  - name: dev-bot\n"

// holding lets the first step of that name of a keeper wait.
func (l *land) holding(op string) (reached <-chan struct{}, release func()) {
	held, open := make(chan struct{}), make(chan struct{})
	var reachedOnce atomic.Bool
	l.keeper.step = func(name string) error {
		if name == op && reachedOnce.CompareAndSwap(false, true) {
			close(held)
			<-open
		}
		return l.step(name)
	}
	return held, sync.OnceFunc(func() { close(open) })
}

// A sync of one tenant takes as long as its jails take. The changes of another do not wait for it, those of its own do.
func TestTenantsDoNotWaitForEachOthersChanges(t *testing.T) {
	l := newLand(t)
	l.operator("slow", identity.RoleAdmin)
	reached, release := l.holding("keep")
	defer release()
	ended := make(chan error, 1)
	go func() {
		_, err := l.sync(oneBot, func(r *SyncRequest) { r.Tenant = "slow" })
		ended <- err
	}()
	<-reached
	p, err := l.sync(twoBots)
	l.want("a sync of another tenant", p, err, "create dev-bot", "create archive-bot")
	l.must(l.RestartAgent(l.ctx, l.admin, "default", "dev-bot"))
	l.must(l.RotateToken(l.ctx, l.admin, "default", "dev-bot", 0))
	l.must(l.RemoveAgent(l.ctx, l.admin, "default", "archive-bot", RemoveOptions{}))
	gone := errors.New("has left")
	ctx, leave := context.WithCancelCause(l.ctx)
	leave(gone)
	if err := l.RemoveAgent(ctx, l.admin, "slow", "dev-bot", RemoveOptions{}); !errors.Is(err, gone) {
		t.Errorf("a second change of the same tenant does not wait: %v", err)
	}
	release()
	l.must(<-ended)
	l.must(l.RemoveAgent(l.ctx, l.admin, "slow", "dev-bot", RemoveOptions{}))
}

// A text takes much memory while it is read: one is read at a time, and none of who may not declare.
func TestOneDeclarationIsReadAtATime(t *testing.T) {
	l := newLand(t)
	reading, read := make(chan struct{}), make(chan struct{})
	declare := func(ctx context.Context, by identity.Principal, name string, before func()) error {
		_, err := l.Declare(ctx, by, "", func() (clawbots.Agent, error) {
			before()
			return clawbots.Agent{Name: name}, nil
		}, false, nil)
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- declare(l.ctx, l.admin, "one", func() { close(reading); <-read }) }()
	<-reading
	gone := errors.New("has left")
	ctx, leave := context.WithCancelCause(l.ctx)
	leave(gone)
	if err := declare(ctx, l.admin, "two", func() { t.Error("another is read") }); !errors.Is(err, gone) {
		t.Errorf("another does not wait: %v", err)
	}
	if _, err := l.Sync(ctx, l.admin, SyncRequest{Text: "clawbots: ["}, nil); !errors.Is(err, gone) {
		t.Errorf("a file does not wait: %v", err)
	}
	viewer := l.operator("acme", identity.RoleViewer)
	if err := declare(l.ctx, viewer, "two", func() { t.Error("it is read for a viewer") }); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("a viewer: %v", err)
	}
	close(read)
	l.must(<-ended)
	p, err := l.sync(oneBot)
	l.want("a sync afterwards", p, err, "create dev-bot", "extra one")
}

// A client that is told of the steps of a sync and does not listen holds up no change, not even of the same tenant.
func TestWhoListensSlowlyHoldsNobodyUp(t *testing.T) {
	l := newLand(t)
	listening, listen := make(chan struct{}), make(chan struct{})
	var first sync.Once
	var heard []string
	ended := make(chan error, 1)
	go func() {
		_, err := l.Sync(l.ctx, l.admin, SyncRequest{Source: "clawbots.yml", Text: oneBot, Dir: "/srv/bots/team"}, func(s Step) {
			first.Do(func() { close(listening); <-listen })
			heard = append(heard, map[bool]string{false: "begun ", true: "done "}[s.Done]+s.Name)
		})
		ended <- err
	}()
	<-listening
	p, err := l.sync(twoBots)
	l.want("the next sync", p, err, "unchanged dev-bot", "create archive-bot")
	select {
	case err := <-ended:
		t.Errorf("a sync has returned although not everything is told: %v", err)
	default:
	}
	close(listen)
	l.must(<-ended)
	if want := []string{"begun dev-bot", "done dev-bot"}; !slices.Equal(heard, want) {
		t.Errorf("heard %v, want %v", heard, want)
	}
}

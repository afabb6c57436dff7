package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
)

const patience = 10 * time.Second

// follow runs what lets agents through until the test ends, or the answer is called.
func (l *land) follow() (stop func()) {
	ctx, cancel := context.WithCancel(l.ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Follow(ctx); err != nil {
			l.t.Error(err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	l.t.Cleanup(stop)
	return stop
}

func (l *land) addr(key string) netip.Addr {
	k, _ := l.keeper.status(key)
	return k.Addr
}

func TestTheGatewayKnowsWhoseAddressIsWhose(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n")
	l.must(err)
	l.follow()
	a, err := l.db.Agent(l.ctx, "default", "bot")
	l.must(err)
	first := l.addr("bot")
	testenv.Eventually(t, patience, func() bool { _, in := l.gate.at(first); return in }, "the jail is not let through")
	who, _ := l.gate.at(first)
	k, _ := l.keeper.status("bot")
	if who.Agent != a.ID || who.Tenant != "default" || who.Actor != "agent:"+a.ID || who.Jail != string(k.Jail) || who.Session != "" || who.Policy.Default != policy.Only().Default {
		t.Errorf("it is let through as %+v", who)
	}
	l.must(l.RestartAgent(l.ctx, l.admin, "", "bot"))
	testenv.Eventually(t, patience, func() bool { _, in := l.gate.at(l.addr("bot")); return in }, "the new jail is not let through")
	testenv.Eventually(t, patience, func() bool { _, in := l.gate.at(first); return !in }, "the old address is let through")
	second := l.addr("bot")
	l.must(l.RemoveAgent(l.ctx, l.admin, "", "bot", RemoveOptions{}))
	testenv.Eventually(t, patience, func() bool { _, in := l.gate.at(second); return !in }, "a removed agent's address is let through")
}

func TestTheGatewayIsToldAgainWhenTheHostDaemonComesBack(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n")
	l.must(err)
	l.keeper.mu.Lock()
	l.keeper.away = errors.New("away")
	l.keeper.mu.Unlock()
	l.follow()
	if l.Unknown(l.ctx, netip.MustParseAddr("10.0.0.1")) {
		t.Error("an address is known although nobody answers")
	}
	l.keeper.mu.Lock()
	l.keeper.away = nil
	l.keeper.mu.Unlock()
	testenv.Eventually(t, patience, func() bool { _, in := l.gate.at(l.addr("bot")); return in }, "the jail is not let through")
}

func TestAnUnknownAddressIsLookedUpAtOnce(t *testing.T) {
	l := newLand(t) // nobody follows
	_, err := l.sync("clawbots:\n  - name: bot\n  - name: revoked\n")
	l.must(err)
	l.must(l.who.RevokeAgent(l.ctx, l.admin, "default", "revoked"))
	if !l.Unknown(l.ctx, netip.AddrFrom16(l.addr("bot").As16())) {
		t.Error("the jail of an agent is not known")
	}
	for what, addr := range map[string]netip.Addr{"a stranger": netip.MustParseAddr("10.9.9.9"), "a revoked agent": l.addr("revoked"), "nothing": {}} {
		if l.Unknown(l.ctx, addr) {
			t.Errorf("%s is known", what)
		}
		if _, in := l.gate.at(addr); in {
			t.Errorf("%s is let through", what)
		}
	}
}

func TestAnAddressThatCannotBeForgottenIsNobodyElses(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: one\n")
	l.must(err)
	l.must(l.admit(l.ctx))
	addr := l.addr("one")
	before, _ := l.gate.at(addr)
	l.gate.stuck = true
	_, err = l.sync("clawbots:\n  - name: two\n", prune)
	l.must(err)
	l.keeper.edit("two", func(k *jail.KeptStatus) { k.Addr = addr })
	if err := l.admit(l.ctx); err == nil {
		t.Error("nothing is said of an address that cannot be forgotten")
	}
	if who, _ := l.gate.at(addr); who.Agent != before.Agent {
		t.Errorf("another agent inherits the address: %+v", who)
	}
	l.gate.stuck = false
	l.must(l.admit(l.ctx))
	if who, in := l.gate.at(addr); !in || who.Agent == before.Agent {
		t.Errorf("the address is not the new agent's: %+v", who)
	}
}

// The keeper may still name the address of a jail that has ended when a session has it.
func TestAnAddressThatASessionHasByNowIsLeftToIt(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: one\n  - name: two\n")
	l.must(err)
	l.must(l.admit(l.ctx))
	one, two := l.addr("one"), l.addr("two")
	l.must(l.gate.Forget(one, ""))
	l.must(l.gate.Admit(one, gateway.Caller{Jail: "btest00001", Session: "s_1"}))
	for _, key := range []string{"one", "two"} {
		l.keeper.edit(key, func(k *jail.KeptStatus) { k.Jail, k.Addr = "", netip.Addr{} })
	}
	l.must(l.admit(l.ctx))
	if who, _ := l.gate.at(one); who.Session != "s_1" {
		t.Errorf("the session is cut off: %+v", who)
	}
	if who, in := l.gate.at(two); in {
		t.Errorf("a jail that has ended is let through: %+v", who)
	}
}

func TestARevokedAgentsJailIsStoppedAndStartedAgainWhenItIsRestored(t *testing.T) {
	l := newLand(t)
	const file = "clawbots:\n  - name: bot\n  - name: other\n"
	_, err := l.sync(file)
	l.must(err)
	stand := func() { t.Helper(); l.must(l.stand(l.ctx, map[agentKey]time.Time{})) }
	l.must(l.admit(l.ctx))
	addr := l.addr("bot")
	l.keeper.done()
	stand()
	if done := l.keeper.done(); len(done) > 0 {
		t.Errorf("nothing was to be done: %v", done)
	}
	l.must(l.who.RevokeAgent(l.ctx, l.admin, "default", "bot"))
	stand()
	if done := l.keeper.done(); !slices.Equal(done, []string{"keep bot stopped=true"}) {
		t.Errorf("a revoked agent: %v", done)
	}
	if _, in := l.gate.at(addr); in {
		t.Error("it is let through")
	}
	p, err := l.sync(file)
	l.want("a sync of a revoked agent", p, err, "unchanged bot", "unchanged other")
	p, err = l.sync("clawbots:\n  - name: bot\n    limits: {tasks: 9}\n    allow: [example.com]\n  - name: other\n")
	l.want("a change of a revoked agent", p, err, "change bot", "unchanged other")
	if k, _ := l.keeper.status("bot"); !k.Stopped || k.Spec.Limits.Tasks != 9 {
		t.Errorf("it is %+v", k)
	}
	l.wantCode("restarting it", l.RestartAgent(l.ctx, l.admin, "", "bot"), problem.Conflict)
	l.must(l.who.RestoreAgent(l.ctx, l.admin, "default", "bot"))
	l.keeper.done()
	stand()
	if done := l.keeper.done(); !slices.Equal(done, []string{"keep bot stopped=false"}) {
		t.Errorf("a restored agent: %v", done)
	}
	stand()
	if by, err := l.bearer(l.keeper.token("bot")); err != nil || by.Name != "bot" {
		t.Errorf("its token is of no use: %v", err)
	}
	if done := l.keeper.done(); len(done) > 0 {
		t.Errorf("and again: %v", done)
	}
	l.must(l.who.DeleteAgent(l.ctx, l.admin, "default", "bot"))
	stand()
	if done := l.keeper.done(); !slices.Equal(done, []string{"keep bot stopped=true"}) {
		t.Errorf("a deleted agent: %v", done)
	}
	if k, _ := l.keeper.status("other"); k.Stopped {
		t.Error("another agent is stopped")
	}
}

func TestAJailThatDoesNotObeyIsLeftAloneForAWhile(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n")
	l.must(err)
	l.must(l.who.RevokeAgent(l.ctx, l.admin, "default", "bot"))
	waits := map[agentKey]time.Time{}
	l.kill(0)
	if err := l.stand(l.ctx, waits); !errors.Is(err, errKilled) {
		t.Errorf("it is said to obey: %v", err)
	}
	l.kill(-1)
	l.must(l.stand(l.ctx, waits))
	if k, _ := l.keeper.status("bot"); k.Stopped {
		t.Error("it was not left alone")
	}
	l.forward(tryAgain)
	l.must(l.stand(l.ctx, waits))
	if k, _ := l.keeper.status("bot"); !k.Stopped {
		t.Error("it was left alone for good")
	}
}

func TestServersAreThoseThatAreDeclaredForTheAgent(t *testing.T) {
	l := newLand(t)
	heard := 0
	l.o.ServersChanged = func() { heard++ }
	_, err := l.sync("clawbots:\n  - name: bot\n    mcp: [files]\n  - name: other\n")
	l.must(err)
	bot, err := l.db.Agent(l.ctx, "default", "bot")
	l.must(err)
	if heard != 1 {
		t.Errorf("of a change it was heard %d times", heard)
	}
	_, err = l.sync("clawbots:\n  - name: bot\n    mcp: [files]\n    command: [/bin/true]\n  - name: other\n")
	l.must(err)
	if heard != 1 {
		t.Errorf("of a change that is none, %d times", heard)
	}
	other, err := l.db.Agent(l.ctx, "default", "other")
	l.must(err)
	if got := l.ServersOf("default", bot.ID); !slices.Equal(got, []string{"files"}) {
		t.Errorf("it has %v", got)
	}
	for what, got := range map[string][]string{"another agent": l.ServersOf("default", other.ID), "another tenant": l.ServersOf("acme", bot.ID), "nobody": l.ServersOf("default", "")} {
		if len(got) > 0 {
			t.Errorf("%s has %v", what, got)
		}
	}
	l.begin() // another process, which has synced nothing
	l.follow()
	testenv.Eventually(t, patience, func() bool { return len(l.ServersOf("default", bot.ID)) == 1 }, "they are not known after a restart")
	_, err = l.sync("clawbots:\n  - name: bot\n  - name: other\n")
	l.must(err)
	if got := l.ServersOf("default", bot.ID); len(got) > 0 {
		t.Errorf("it still has %v", got)
	}
}

// hanging is a store that lists nothing until its caller does not wait any more.
type hanging struct{ Store }

func (hanging) ListAgents(ctx context.Context, _ string) ([]store.Agent, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) ListEntries(ctx context.Context, _ string) ([]store.Entry, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Those who watch over agents have no time of their own, and hold a connection to the database while they wait.
func TestADatabaseThatDoesNotAnswerIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Service{o: Options{Store: hanging{}}}
		for what, look := range map[string]func(context.Context) error{
			"agents":       func(ctx context.Context) error { _, err := s.byName(ctx); return err },
			"declarations": func(ctx context.Context) error { _, err := s.declarations(ctx, "default"); return err },
			"removals":     func(ctx context.Context) error { return s.goOn(ctx, nil) },
			"servers":      s.readServers,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if err := look(ctx); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
				t.Errorf("%s: got %v", what, err)
			}
			cancel()
		}
	})
}

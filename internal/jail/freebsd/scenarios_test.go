//go:build linux

package freebsd

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"
	"github.com/clawjail/clawjail/internal/problem"
)

// healed ends the misbehaviour; what is left then goes with the next reaping.
func (w *fixture) healed(l *jail.Lifecycle, before []string) {
	w.t.Helper()
	w.host.Heal()
	if _, err := l.Reap(context.Background(), jail.ReapOptions{}); err != nil {
		w.t.Errorf("reap: %v", err)
	}
	w.same(before)
}

func TestAJailThatCannotBeMadeLeavesNothing(t *testing.T) {
	t.Parallel()
	for scenario, says := range map[string]string{
		"start-lies":    "there is no jail",
		"create-fails":  "Operation not permitted",
		"epair-left":    "jail -f",
		"ifconfig-race": "File exists",
		"no-space":      problem.DiskFull,
		// The kernel has no such ruleset: jail(8) refuses.
		"devfs-ruleset-missing": "",
	} {
		t.Run(scenario, func(t *testing.T) {
			w, before := newSteadyFixture(t)
			w.t = t
			l := w.life(w.open())
			w.host.Scenario(scenario)
			j, err := l.Create(t.Context(), w.spec("exec cat"))
			if err == nil {
				j.Stdio.Close()
				t.Fatal("a jail was made")
			}
			if !strings.Contains(err.Error(), says) && problem.CodeOf(err) != says {
				t.Errorf("it says %v", err)
			}
			// Without help: everything that the failure left was found by its name.
			if left := w.host.Resources(); len(left) != len(before) {
				t.Logf("left until the host is well again: %v", left)
			}
			w.healed(l, before)
		})
	}
}

func TestADriverRefusesAHostThatCannotConfine(t *testing.T) {
	t.Parallel()
	for scenario, hint := range map[string]string{
		"racct-off": "kern.racct.enable=1", "racct-missing": "GENERIC", "rules-missing": "pf-anchor", "table-missing": "pf-anchor", "pf-disabled": "pf_enable",
	} {
		t.Run(scenario, func(t *testing.T) {
			w := newFixture(t)
			w.host.Scenario(scenario)
			h, err := Open(t.Context(), w.options())
			if err == nil {
				must(t, h.Close())
				t.Fatal("it was opened")
			}
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != problem.Unsupported || !strings.Contains(p.Hint, hint) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestADriverRefusesBridgesThatPassTheFirewallBy(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.host.Set(hosttest.Settings{Sysctls: map[string]string{"net.link.bridge.member_ifaddrs": "1"}})
	h, err := Open(t.Context(), w.options())
	if err == nil {
		must(t, h.Close())
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}

func TestNoJailIsAdmittedToATableThatNoRuleNames(t *testing.T) {
	t.Parallel()
	for _, scenario := range []string{"rules-missing", "table-missing"} {
		w, _ := newSteadyFixture(t)
		h := w.open()
		l := w.life(h)
		j, err := l.Create(t.Context(), w.spec("exec cat"))
		must(t, err)
		w.host.Scenario(scenario)
		if err := l.Admit(t.Context(), j.Name); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", scenario, err)
		}
		if err := h.Firewall.Ensure(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", scenario, err)
		}
		j.Stdio.Close()
		must(t, l.Destroy(t.Context(), j.Name))
	}
}

func TestWhatIsBusyForAWhileIsGoneInTheEnd(t *testing.T) {
	t.Parallel()
	for _, scenario := range []string{"busy-clears", "busy-older", "mount-held", "dying-briefly"} {
		t.Run(scenario, func(t *testing.T) {
			w, before := newSteadyFixture(t)
			w.t = t
			l := w.life(w.open())
			w.host.Scenario(scenario)
			j, err := l.Create(t.Context(), w.spec("exec cat"))
			must(t, err)
			must(t, l.Admit(t.Context(), j.Name))
			j.Stdio.Close()
			if err := l.Destroy(t.Context(), j.Name); err != nil {
				t.Errorf("destroy: %v", err)
			}
			w.same(before)
		})
	}
}

func TestWhatStaysBusyIsReportedAndRemovedLater(t *testing.T) {
	t.Parallel()
	w, before := newSteadyFixture(t)
	l := w.life(w.open())
	w.host.Scenario("busy-never")
	j, err := l.Create(t.Context(), w.spec("exec cat"))
	must(t, err)
	j.Stdio.Close()
	if err := l.Destroy(t.Context(), j.Name); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("destroy: %v", err)
	}
	w.healed(l, before)
}

func TestADyingJailKeepsItsAddressUntilItIsGone(t *testing.T) {
	t.Parallel()
	w, before := newSteadyFixture(t)
	h := w.open()
	l := w.life(h)
	w.host.Set(hosttest.Settings{Dying: "1h"})
	j, err := l.Create(t.Context(), w.spec("exec cat"))
	must(t, err)
	j.Stdio.Close()
	if err := l.Destroy(t.Context(), j.Name); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("destroy: %v", err)
	}
	if !h.Network.o.Pool.Has(j.Lease.Index) {
		t.Error("its address was given back while its network exists")
	}
	if resources, err := l.HostResources(t.Context()); err != nil || len(resources) == 0 {
		t.Errorf("nobody sees it: %v, %v", resources, err)
	}
	w.healed(l, before)
}

func TestAJailEndsInASecondWhateverConnectionsItHad(t *testing.T) {
	t.Parallel()
	w, before := newSteadyFixture(t)
	l := w.life(w.open())
	w.host.Scenario("dying-jail") // for twice the MSL of its network, by default a minute
	j, err := l.Create(t.Context(), w.spec("exec cat"))
	must(t, err)
	j.Stdio.Close()
	must(t, l.Destroy(t.Context(), j.Name))
	w.same(before)
}

func TestACloneThatAProcessHoldsIsTakenAwayFromIt(t *testing.T) {
	t.Parallel()
	w, before := newSteadyFixture(t)
	h := w.open()
	l := w.life(h)
	j, err := l.Create(t.Context(), w.spec("exec cat"))
	must(t, err)
	holder := exec.Command("/bin/sleep", "600")
	holder.Dir = h.Storage.root(j.Name)
	must(t, holder.Start())
	released := time.AfterFunc(2*time.Second, func() { _ = holder.Process.Kill() }) // a look at it, such as find(1) takes
	defer released.Stop()
	defer func() { _ = holder.Wait() }()
	j.Stdio.Close()
	if err := l.Destroy(t.Context(), j.Name); err != nil {
		t.Errorf("destroy: %v", err)
	}
	w.same(before)
}

func TestAnOrphanOfEachKindIsReaped(t *testing.T) {
	t.Parallel()
	name := "bk3x900042"
	for kind, plant := range map[string]func(*fixture, *Host){
		"clone": func(w *fixture, h *Host) {
			w.host.Must("zfs", "clone", "-o", "mountpoint="+h.Storage.root(jail.Name(name)), "zroot/clawjail/templates/tiny/rootfs@clawjail", "zroot/clawjail/jails/"+name)
		},
		"described epair": func(w *fixture, _ *Host) { w.host.Must("ifconfig", "epair", "create", "description", "clawjail "+name) },
		"named epair": func(w *fixture, _ *Host) {
			a := strings.TrimSpace(w.host.Must("ifconfig", "epair", "create"))
			w.host.Must("ifconfig", a, "name", "e0a_"+name)
		},
		"rctl rule": func(w *fixture, _ *Host) { w.host.Must("rctl", "-a", "jail:"+name+":maxproc:deny=3") },
		"table member": func(w *fixture, _ *Host) {
			w.host.Must("pfctl", "-a", "clawjail/k3x9", "-t", "browser_tasks", "-T", "add", "10.99.0.171")
		},
		"folder": func(w *fixture, h *Host) { must(w.t, h.Runtime.folders.Make(name, 0o700, -1)) },
		"token":  func(w *fixture, h *Host) { must(w.t, h.Storage.tokens.Make(name, 0o700, -1)) },
		"jail": func(w *fixture, h *Host) {
			spec := w.spec("exec cat")
			lease, err := h.Network.o.Pool.Lease(42)
			must(w.t, err)
			p := jail.Placement{Name: jail.Name(name), Spec: spec, Lease: lease, Profile: jail.ProfileFor(spec, lease).With(Means())}
			ctx := context.Background()
			p.Root, err = h.Storage.Clone(ctx, p.Name, spec)
			must(w.t, err)
			_, err = h.Network.Attach(ctx, p.Name, lease)
			must(w.t, err, h.Limiter.Apply(ctx, p.Name, spec.Tenant(), spec.Limits))
			_, err = h.Runtime.Start(ctx, p, [3]*os.File{})
			must(w.t, err)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			w, before := newSteadyFixture(t)
			w.t = t
			h := w.open()
			l := w.life(h)
			plant(w, h)
			r, err := l.Reap(t.Context(), jail.ReapOptions{DryRun: true})
			if err != nil || len(r.Findings) == 0 {
				t.Fatalf("it is not found: %+v, %v", r, err)
			}
			if _, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil {
				t.Errorf("reap: %v", err)
			}
			w.same(before)
			if left, err := os.ReadDir(h.Runtime.folders.Path()); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

func TestWhatIsSomebodyElsesIsLeftAlone(t *testing.T) {
	t.Parallel()
	w, _ := newSteadyFixture(t)
	l := w.life(w.open())
	a := strings.TrimSpace(w.host.Must("ifconfig", "epair", "create"))
	w.host.Must("ifconfig", a, "name", "e0a_bastille1")
	w.host.Must("ifconfig", "epair", "create", "description", "clawjail bother00001")
	w.host.Must("rctl", "-a", "jail:www:maxproc:deny=3")
	w.host.Must("zfs", "create", "zroot/clawjail/jails/other")
	before := w.host.Resources()
	r, err := l.Reap(t.Context(), jail.ReapOptions{})
	if err != nil || len(r.Findings) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	w.same(before)
}

func TestTheProfileIsReadBackAndADifferenceEndsTheJail(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*fixture, *Host, jail.Placement){
		"limits": func(w *fixture, _ *Host, p jail.Placement) { w.host.Must("rctl", "-r", "jail:"+string(p.Name)) },
		"read-only": func(w *fixture, _ *Host, p jail.Placement) {
			w.host.Must("zfs", "set", "readonly=off", "zroot/clawjail/jails/"+string(p.Name))
		},
		"tmpfs": func(w *fixture, _ *Host, p jail.Placement) { w.host.Must("umount", p.Root+"/tmp") },
		"a mount more": func(w *fixture, _ *Host, p jail.Placement) {
			w.host.Must("mount", "-t", "tmpfs", "-o", "size=1048576,mode=777", "tmpfs", p.Root+"/var")
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, before := newSteadyFixture(t)
			w.t = t
			h := w.open()
			h.Runtime.spoil = func(p jail.Placement) { spoil(w, h, p) }
			l := w.life(h)
			j, err := l.Create(t.Context(), w.spec("exec cat"))
			if err == nil {
				j.Stdio.Close()
				t.Fatal("it became ready")
			}
			if problem.CodeOf(err) != problem.JailUnconfined && !strings.Contains(err.Error(), "not confined") {
				t.Errorf("%v", err)
			}
			w.same(before)
		})
	}
}

func TestAJailIsKnownToTheNextHostDaemon(t *testing.T) {
	t.Parallel()
	w, before := newSteadyFixture(t)
	first := w.life(w.open())
	j, err := first.CreateFor(t.Context(), "owner", w.spec("exec cat"), func(context.Context, *jail.Jail) error { return nil })
	must(t, err)
	must(t, first.Admit(t.Context(), j.Name))
	first.Close()
	second := w.life(w.open())
	if r, err := second.Reap(t.Context(), jail.ReapOptions{}); err != nil || r.Jails != 1 || len(r.Findings) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := j.Stdio.In.WriteString("still here\n"); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); line != "still here\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	j.Stdio.Close()
	if x, err := second.Wait(t.Context(), j.Name); err != nil || x.Code != -1 {
		t.Errorf("it ended with %+v, %v", x, err)
	}
	must(t, second.Destroy(t.Context(), j.Name))
	w.same(before)
}

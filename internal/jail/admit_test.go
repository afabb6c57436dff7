package jail_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
)

// beginner notes whether the gateway was open to a jail when its program was let begin.
type beginner struct {
	jail.Runtime
	firewall jail.Firewall
	open     *[]bool
}

func (b beginner) Begin(ctx context.Context, p jail.Placement, proc jail.Process) error {
	members, err := b.firewall.List(ctx)
	*b.open = append(*b.open, len(members) > 0)
	return errors.Join(err, b.Runtime.Begin(ctx, p, proc))
}

func TestGatewayIsOpenBeforeTheProgramBeginsWhereItIsAskedFor(t *testing.T) {
	var open []bool
	l := newLifecycle(t, jailtest.NewMemory(jailtest.NewHost()), func(o *jail.Options) {
		o.Parts.Runtime = beginner{o.Parts.Runtime, o.Parts.Firewall, &open}
	})
	for _, admit := range []bool{false, true} {
		s := spec()
		s.Admit = admit
		j, err := l.CreateFor(t.Context(), "", s, delivered)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Stdio.Close()
		st, err := l.Inspect(t.Context(), j.Name)
		if err != nil || (st.State == jail.StateReady) != admit {
			t.Errorf("admit %v: it is %s, %v", admit, st.State, err)
		}
		if err := l.Admit(t.Context(), j.Name); err != nil { // which is for the other, and no error for this one
			t.Error(err)
		}
		if err := l.Destroy(t.Context(), j.Name); err != nil {
			t.Error(err)
		}
	}
	if len(open) != 2 || open[0] || !open[1] {
		t.Errorf("the gateway was open: %v", open)
	}
}

// A warm browser waits between the two, and somebody may take a profile of AppArmor out of the kernel meanwhile.
func TestAWarmJailThatLostAControlIsNotAdmitted(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	l := newLifecycle(t, m)
	for _, lost := range []func(*jail.Observed){nil, func(o *jail.Observed) { o.AppArmor = "unconfined" }} {
		m.Seen = nil
		j, err := l.Create(t.Context(), spec())
		if err != nil {
			t.Fatal(err)
		}
		defer j.Stdio.Close()
		m.Seen = lost
		err = l.Admit(t.Context(), j.Name)
		member := jail.HostResource{Kind: jail.ResourceTableMember, Index: j.Lease.Index, ID: j.Lease.Addr.String()}
		if open := slices.Contains(h.Resources(), member); open == (lost != nil) || (problem.CodeOf(err) == problem.JailUnconfined) != (lost != nil) {
			t.Errorf("lost %v: %v, and the gateway is open: %v", lost != nil, err, open)
		}
		if err := l.Destroy(t.Context(), j.Name); err != nil {
			t.Error(err)
		}
	}
}

// Whether a jail was made with profiles is remembered: the host daemon of later may do otherwise.
func TestProgramsJoinAJailUnderTheProfileThatItHas(t *testing.T) {
	for _, was := range []bool{true, false} {
		m := jailtest.NewMemory(jailtest.NewHost())
		with := func(apparmor bool, place *[]jail.AppArmorProfile) func(*jail.Options) {
			return func(o *jail.Options) {
				o.Parts.Means.AppArmor = apparmor
				o.Parts.Runtime = joiner{o.Parts.Runtime, place}
			}
		}
		var seen []jail.AppArmorProfile
		j, err := newLifecycle(t, m, with(was, &seen)).Create(t.Context(), spec())
		if err != nil {
			t.Fatal(err)
		}
		defer j.Stdio.Close()
		later := newLifecycle(t, m, with(!was, &seen))
		if _, err := later.Exec(t.Context(), j.Name, jail.Program{Argv: []string{"/bin/true"}, Wire: jail.WireStdio}, [3]*os.File{}); !errors.Is(err, errJoined) {
			t.Fatal(err)
		}
		want := map[bool]jail.AppArmorProfile{true: jail.AppArmorBrowser}[was]
		if len(seen) != 1 || seen[0] != want {
			t.Errorf("made with %v, joined with %q", was, seen)
		}
		if err := later.Destroy(t.Context(), j.Name); err != nil {
			t.Error(err)
		}
	}
}

var errJoined = errors.New("joined")

// joiner notes the profiles with which programs join.
type joiner struct {
	jail.Runtime
	seen *[]jail.AppArmorProfile
}

func (j joiner) Exec(_ context.Context, p jail.Placement, _ jail.Process, _ jail.Program, _ [3]*os.File) (jail.Execution, error) {
	*j.seen = append(*j.seen, p.Profile.AppArmor)
	return nil, errJoined
}

package jail_test

import (
	"context"
	"errors"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
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

//go:build linux

package freebsd

import (
	"context"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
)

func TestJailsKeepTheirPromisesOnTheSimulator(t *testing.T) {
	t.Parallel()
	jailtest.Run(t, func(t *testing.T) jailtest.Subject {
		w := newWorld(t)
		l := w.life(w.open())
		running(t, l)
		return jailtest.Subject{Driver: l, Template: "tiny", Missing: "bk3x999999", Confines: true, Slow: true,
			Things: func(ctx context.Context) ([]jail.Trace, error) {
				traces, err := l.Traces(ctx)
				for _, thing := range w.host.Things() {
					traces = append(traces, jail.Trace{Kind: "simulator", Index: -1, ID: thing})
				}
				return append(traces, w.disk.Things()...), err
			}}
	})
}

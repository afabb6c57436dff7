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
		w := newFixture(t)
		l := w.life(w.open())
		running(t, l)
		return jailtest.Subject{Driver: l, Template: "tiny", Missing: "bk3x999999", Confines: true, Slow: true,
			Resources: func(ctx context.Context) ([]jail.HostResource, error) {
				resources, err := l.HostResources(ctx)
				for _, thing := range w.host.Resources() {
					resources = append(resources, jail.HostResource{Kind: "simulator", Index: -1, ID: thing})
				}
				return append(resources, w.disk.Resources()...), err
			}}
	})
}

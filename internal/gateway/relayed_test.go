package gateway

import (
	"testing"

	relays "github.com/clawjail/clawjail/internal/gateway/relay"
	"github.com/clawjail/clawjail/internal/policy"
)

// An address is forgotten although nobody gets through to a relay's listener who only dials.
func TestForgetSeesTheEndOfARelaysQueue(t *testing.T) {
	w := newFixtureOn(t, relays.Listen(listenOn(t, "127.0.0.1:0"), relays.NewKey(), 3000, nil))
	w.admit(jailA, policy.PublicWeb())
	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	w.admit(jailA, policy.PublicWeb())
}

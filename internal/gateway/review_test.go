package gateway

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestOpenTunnelsEndWhenTheirRuleDoes(t *testing.T) {
	all := policy.Rule{Name: "all", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.Ports(443), Opaque: true}
	no := policy.Rule{Name: "no", Action: policy.Deny, Host: policy.MustParsePattern("example.com"), Ports: policy.AnyPort()}
	for name, c := range map[string]struct {
		then []policy.Rule
		once bool
		ends bool
	}{
		"nothing changed":                {[]policy.Rule{all}, false, false},
		"another rule allows it":         {[]policy.Rule{{Name: "other", Action: policy.Allow, Host: policy.MustParsePattern("example.com"), Ports: policy.Ports(443), Opaque: true}}, false, false},
		"nobody knows the rules":         {[]policy.Rule{{Name: policy.RuleUnknown, Action: policy.Deny, Host: policy.AnyHost(), Ports: policy.AnyPort()}}, false, false},
		"the rule is gone":               {nil, false, true},
		"the rule was for one use":       {nil, true, false},
		"a rule denies it":               {[]policy.Rule{no, all}, false, true},
		"a rule denies what had one use": {[]policy.Rule{no}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Pointer[policy.Compiled]
			now.Store(permit(t, policy.Only(all)))
			w := newFixture(t, func(o *Config) {
				o.Policy = func(Caller) *policy.Compiled { return now.Load() }
				o.Used = func(context.Context, string) (bool, bool) { return true, c.once }
			})
			w.public("example.com", "93.184.216.34", server(t, echo).Addr())
			w.admit(jailA, policy.Only())
			conn, br := w.connect(jailA, "example.com:443")
			say := func() error {
				if _, err := io.WriteString(conn, "x"); err != nil {
					return err
				}
				_, err := br.ReadByte()
				return err
			}
			if err := say(); err != nil {
				t.Fatal(err)
			}
			now.Store(permit(t, policy.Only(c.then...)))
			w.g.reviewTunnels()
			if err := say(); (err != nil) != c.ends {
				t.Fatalf("the tunnel ends: %v", err)
			}
			if !c.ends {
				return
			}
			eventually(t, func() bool { return len(w.ended()) == 1 }, "the tunnel has no outcome")
			if o := w.ended()[0]; o.Code != problem.HostDenied {
				t.Errorf("%+v", o)
			}
		})
	}
}

func TestTunnelsAreReviewedByThemselves(t *testing.T) {
	var now atomic.Pointer[policy.Compiled]
	now.Store(permit(t, policy.PublicWeb()))
	w := newFixture(t, func(o *Config) { o.Policy = func(Caller) *policy.Compiled { return now.Load() } })
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, policy.Only())
	conn, br := w.connect(jailA, "example.com:443")
	if _, err := conn.Write(clientHello(t, "example.com")); err != nil {
		t.Fatal(err)
	}
	if _, err := br.ReadByte(); err != nil {
		t.Fatal(err)
	}
	now.Store(permit(t, policy.Only()))
	// Ends, or fails at the connection's deadline.
	if _, err := io.Copy(io.Discard, br); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the tunnel goes on without a rule")
	}
}

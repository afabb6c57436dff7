package controlplane

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway/hostport"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPrivateDestinationNeedsAndHasARuleAndAnAddress(t *testing.T) {
	c := config.Default()
	ask := func(r reach, host string, port uint16) (bool, bool) {
		h := hostport.MustParseHost(host)
		d := r.policy.Decide(policy.Request{Scheme: policy.HTTPS, Host: h, Port: port, Method: policy.Connect})
		return d.Allowed, d.Address.IsValid()
	}
	r, err := reachOf(c)
	if err != nil {
		t.Fatal(err)
	}
	if allowed, private := ask(r, "git.internal", 8443); allowed || private {
		t.Error("a private destination that nobody configured can be reached")
	}
	c.Gateway.PrivateDestinations = []config.PrivateDestination{
		{Host: "git.internal", Address: netip.MustParseAddr("10.1.2.3"), Ports: []uint16{8443}},
		{Host: "10.9.9.9", Address: netip.MustParseAddr("10.9.9.9"), Ports: []uint16{80}},
		{Host: "fd00::1", Address: netip.MustParseAddr("fd00::1"), Ports: []uint16{80}},
	}
	if r, err = reachOf(c); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		host             string
		port             uint16
		allowed, private bool
	}{
		{"git.internal", 8443, true, true},
		{"git.internal", 8444, false, false},
		{"10.9.9.9", 80, true, true},
		{"[fd00::1]", 80, true, true},
		{"10.9.9.8", 80, false, false},
		{"example.com", 443, true, false},
		{"example.com", 8443, false, false},
	} {
		if allowed, private := ask(r, test.host, test.port); allowed != test.allowed || private != test.private {
			t.Errorf("%s port %d: allowed %t, private %t", test.host, test.port, allowed, private)
		}
	}
	// A cloud's metadata service is not reached, whatever the configuration says.
	c.Gateway.PrivateDestinations = []config.PrivateDestination{{Host: "x.internal", Address: netip.MustParseAddr("169.254.169.254"), Ports: []uint16{80}}}
	if _, err := reachOf(c); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("the metadata service is a destination: %v", err)
	}
}

func TestGatewayWaitsForItsAddress(t *testing.T) {
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), testenv.FreePort(t))
	taken, err := net.Listen("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := listenGateway(short, at); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("an address that is taken: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { taken.Close() })
	l, err := listenGateway(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestExtraAuthoritiesThatCannotBeReadAreNamed(t *testing.T) {
	missing, text := filepath.Join(t.TempDir(), "none.pem"), filepath.Join(t.TempDir(), "text.pem")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{missing, text} {
		if _, _, err := readAuthorities([]string{file}); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: %v", file, err)
		}
	}
	if all, pool, err := readAuthorities(nil); err != nil || all.Len() != 0 || pool == nil {
		t.Errorf("none: %d, %v", all.Len(), err)
	}
}

package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Open work ends first and together, while its way out still runs; then the parts that it needs end, the last first.
func TestEverythingThatWasMadeEndsInItsOrder(t *testing.T) {
	broken := errors.New("broken")
	for failing, c := range map[string]struct {
		atWork int32
		want   string
	}{
		"run":      {2, "database way sessions agents API -work -work ~way -way -database"},
		"API":      {2, "database way sessions agents -work -work -way -database"},
		"agents":   {1, "database way sessions -work -way -database"},
		"way":      {0, "database -database"},
		"database": {0, ""},
	} {
		var mu sync.Mutex // guards seen
		var seen []string
		say := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, what)
		}
		var atWork atomic.Int32
		together := make(chan struct{})
		endWork := func(_ *plane, ctx context.Context) error {
			if atWork.Add(1) == c.atWork {
				close(together)
			}
			select {
			case <-together:
			case <-ctx.Done():
				t.Error("work ends one after the other")
			}
			say("-work")
			return errors.New("unwilling")
		}
		runWay := func(_ *plane, ctx context.Context) error {
			<-ctx.Done()
			say("~way")
			return nil
		}
		parts := []part{{name: "database"}, {name: "way", wayOut: true, run: runWay}, {name: "sessions", work: true, end: endWork}, {name: "agents", work: true, end: endWork},
			{name: "API", run: func(*plane, context.Context) error { return broken }}}
		for n, one := range parts {
			parts[n].start = func(*plane, context.Context) error {
				if one.name == failing {
					return broken
				}
				say(one.name)
				return nil
			}
			if n < 2 {
				parts[n].end = func(*plane, context.Context) error { say("-" + one.name); return nil }
			}
		}
		err := live(t.Context(), &plane{Options: Options{Log: slog.New(slog.DiscardHandler)}}, parts)
		if got := strings.Join(seen, " "); !errors.Is(err, broken) || got != c.want || strings.Contains(err.Error(), "end sessions: unwilling") != (c.atWork > 0) {
			t.Errorf("where %s fails: %v, %s instead of %s", failing, err, got, c.want)
		}
	}
}

func TestPrivateDestinationNeedsAndHasARuleAndAnAddress(t *testing.T) {
	c := config.Default()
	ask := func(r policy.Policy, host string, port uint16) (bool, bool) {
		h := hostport.MustParseHost(host)
		d := r.Decide(policy.Request{Scheme: policy.HTTPS, Host: h, Port: port, Method: policy.Connect})
		return d.Allowed, d.Address.IsValid()
	}
	r, err := cleanPolicy(c)
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
	if r, err = cleanPolicy(c); err != nil {
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
	if _, err := cleanPolicy(c); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("the metadata service is a destination: %v", err)
	}
}

// Only an address that is not there yet is waited for: a port that is taken is told at once.
func TestGatewayWaitsForItsAddress(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, nowhere := netip.MustParseAddrPort(taken.Addr().String()), netip.MustParseAddrPort("192.0.2.1:1") // RFC 5737
	if _, err := listenAt(t.Context(), net.ListenConfig{}, at); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a port that is taken: %v", err)
	}
	taken.Close()
	asked := 0
	l, err := listenAt(t.Context(), net.ListenConfig{Control: func(string, string, syscall.RawConn) (err error) {
		if asked++; asked == 1 {
			err = syscall.EADDRNOTAVAIL
		}
		return err
	}}, at)
	if err != nil {
		t.Fatal("an address that comes later:", err)
	}
	l.Close()
	late, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := listenAt(late, net.ListenConfig{}, nowhere); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("an address that does not come: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := listenAt(ended, net.ListenConfig{}, nowhere); err != context.Canceled {
		t.Errorf("the end is asked for: %v", err)
	}
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

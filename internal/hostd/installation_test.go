package hostd

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func subnet(s string) func(context.Context, jail.Installation) (netip.Prefix, error) {
	return func(context.Context, jail.Installation) (netip.Prefix, error) { return netip.ParsePrefix(s) }
}

func TestAnInstallationIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	got := make([]Installation, 16)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			var err error
			if got[i], err = OpenInstallation(t.Context(), dir, netip.Prefix{}, subnet("10.213.0.0/20"), time.Now); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, in := range got {
		if in != got[0] {
			t.Fatalf("two installations: %v and %v", in, got[0])
		}
	}
	if _, err := jail.ParseInstallation(string(got[0].ID)); err != nil || got[0].Created.IsZero() {
		t.Errorf("installation %v: %v", got[0], err)
	}
	again, err := OpenInstallation(t.Context(), dir, netip.Prefix{}, func(context.Context, jail.Installation) (netip.Prefix, error) {
		return netip.Prefix{}, errors.New("asked a second time")
	}, time.Now)
	if err != nil || again != got[0] {
		t.Errorf("opened again: %v, %v", again, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("files: %v, %v", entries, err)
	}
	if info, err := os.Stat(filepath.Join(dir, InstallationFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestEveryIDIsValid(t *testing.T) {
	seen := map[jail.Installation]bool{}
	for range 1000 {
		id := randomID()
		if _, err := jail.ParseInstallation(string(id)); err != nil {
			t.Fatal(err)
		}
		seen[id] = true
	}
	if len(seen) < 990 {
		t.Errorf("only %d of 1000 ids differ", len(seen))
	}
}

func TestAConfiguredSubnetDecidesAndMayNotChange(t *testing.T) {
	dir := t.TempDir()
	first, second := netip.MustParsePrefix("10.90.0.0/22"), netip.MustParsePrefix("10.91.0.0/22")
	in, err := OpenInstallation(t.Context(), dir, first, subnet("10.213.0.0/20"), time.Now)
	if err != nil || in.Subnet != first {
		t.Fatalf("installation %v, %v", in, err)
	}
	if _, err := OpenInstallation(t.Context(), dir, second, nil, time.Now); !hasCode(err, problem.BadConfig) {
		t.Errorf("another subnet: %v", err)
	}
	if _, err := OpenInstallation(t.Context(), dir, netip.Prefix{}, nil, time.Now); err != nil {
		t.Errorf("no subnet any more: %v", err)
	}
}

// TestAWrongSubnetDoesNotBrickAnInstallation has a host on which something else uses 10.77.0.0/16.
func TestAWrongSubnetDoesNotBrickAnInstallation(t *testing.T) {
	taken, other, none := netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("10.79.0.0/16"), netip.Prefix{}
	o := RunOptions{Config: config.Config{DataDir: t.TempDir()}, Now: time.Now, Log: debugLog(io.Discard), Substrate: Substrate{FreeSubnet: subnet("10.213.0.0/20"),
		CheckSubnet: func(_ context.Context, _ jail.Installation, p netip.Prefix) error {
			return jail.CheckSubnet(p, []jail.Occupied{{Network: taken}})
		}}}
	file := filepath.Join(o.Config.DataDir, InstallationFile)
	settle := func(configured netip.Prefix) (Installation, error) {
		o.Config.Subnet = configured
		return o.settle(t.Context())
	}
	if _, err := settle(taken); !hasCode(err, problem.BadConfig) {
		t.Errorf("a network that is in use: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the refused network is written down")
	}
	if err := os.WriteFile(file, []byte(`{"id":"k3x9","subnet":"10.77.0.0/16","created":"2026-01-02T03:04:05Z"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ configured, want netip.Prefix }{{none, netip.MustParsePrefix("10.213.0.0/20")}, {other, other}, {none, other}} {
		in, err := settle(c.configured)
		again, found, readErr := FindInstallation(o.Config)
		if err != nil || in.Subnet != c.want || in.ID != "k3x9" || again != in || !found || readErr != nil {
			t.Errorf("%v: %v, %v, and on the disk %v, %v", c.configured, in, err, again, readErr)
		}
	}
	// Where nobody looks at networks, as where it cannot be known, the configuration decides just the same.
	check := o.Substrate.CheckSubnet
	for what, c := range map[string]struct {
		check      func(context.Context, jail.Installation, netip.Prefix) error
		configured netip.Prefix
		want       netip.Prefix
		code       string
	}{
		"nobody looks":           {nil, netip.MustParsePrefix("10.81.0.0/16"), netip.MustParsePrefix("10.81.0.0/16"), ""},
		"it cannot be looked at": {func(context.Context, jail.Installation, netip.Prefix) error { return errors.New("no answer") }, none, netip.Prefix{}, "internal"},
		"and again":              {check, other, other, ""},
	} {
		o.Substrate.CheckSubnet = c.check
		if in, err := settle(c.configured); problem.CodeOf(err) != c.code || err == nil && in.Subnet != c.want {
			t.Errorf("%s: %v, %v", what, in, err)
		}
	}
	if in, err := settle(other); err != nil || in.Subnet != other {
		t.Fatalf("%v, %v", in, err)
	}
	if entries, err := os.ReadDir(o.Config.DataDir); err != nil || len(entries) != 1 {
		t.Errorf("files: %v, %v", entries, err)
	}
	if err := errors.Join(os.Mkdir(journalPath(o.Config), 0o700), os.WriteFile(filepath.Join(journalPath(o.Config), "a"+recordSuffix), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := settle(netip.MustParsePrefix("10.80.0.0/16")); !hasCode(err, problem.BadConfig) {
		t.Errorf("another network while there are jails: %v", err)
	}
	if in, err := settle(none); err != nil || in.Subnet != other {
		t.Errorf("the network of the jails: %v, %v", in, err)
	}
}

func TestAnInstallationFileIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"good":             {`{"id":"k3x9","subnet":"10.213.0.0/20","created":"2026-01-02T03:04:05Z"}`, 0o600, true},
		"readable":         {`{"id":"k3x9","subnet":"10.213.0.0/20","created":"2026-01-02T03:04:05Z"}`, 0o644, false},
		"empty":            {``, 0o600, false},
		"cut off":          {`{"id":"k3x9","sub`, 0o600, false},
		"bad id":           {`{"id":"K3x9","subnet":"10.213.0.0/20","created":"2026-01-02T03:04:05Z"}`, 0o600, false},
		"id with a path":   {`{"id":"../x","subnet":"10.213.0.0/20","created":"2026-01-02T03:04:05Z"}`, 0o600, false},
		"bad subnet":       {`{"id":"k3x9","subnet":"10.213.0.0/30","created":"2026-01-02T03:04:05Z"}`, 0o600, false},
		"bits of a host":   {`{"id":"k3x9","subnet":"10.213.0.9/20","created":"2026-01-02T03:04:05Z"}`, 0o600, false},
		"no subnet":        {`{"id":"k3x9","subnet":"","created":"2026-01-02T03:04:05Z"}`, 0o600, false},
		"unknown member":   {`{"id":"k3x9","subnet":"10.213.0.0/20","created":"2026-01-02T03:04:05Z","x":1}`, 0o600, false},
		"another's subnet": {`{"id":"k3x9","subnet":"fd00::/64","created":"2026-01-02T03:04:05Z"}`, 0o600, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, InstallationFile)
			if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			_, err := OpenInstallation(t.Context(), dir, netip.Prefix{}, nil, time.Now)
			if (err == nil) != c.ok {
				t.Fatalf("error %v", err)
			}
			if !c.ok && !hasCode(err, problem.BadConfig) {
				t.Errorf("error without its code: %v", err)
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != c.text {
				t.Error("the file was changed")
			}
		})
	}
}

func TestASecondHostDaemonIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hostd.lock")
	first, err := lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lock(path)
	if !hasCode(err, problem.Conflict) {
		t.Fatalf("two locks: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lock(path)
	if err != nil {
		t.Fatalf("after the first is gone: %v", err)
	}
	_ = again.Close()
}

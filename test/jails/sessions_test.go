//go:build linux

package jails

import (
	"bytes"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

func TestTwentySessionsAtOnce(t *testing.T) {
	settings, address := testkit.Page(t, `<!doctype html><title>hello</title>`)
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool + settings})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			s, err := b.API.Open(t.Context(), session.OpenRequest{})
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			if p, err := b.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: address, TimeoutMS: 60000}); err != nil || p.Title != "hello" {
				t.Errorf("navigate: %+v, %v", p, err)
			}
			if err := b.API.Close(t.Context(), s.ID, true); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	all.Wait()
	b.Clean(20 * time.Second)
}

func TestWarmSessionsComeFromThePoolAndAreUsedOnce(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: "warm_pool:\n  size: 2\n"})
	warm := func() session.Session {
		var s session.Session
		testenv.Eventually(t, 30*time.Second, func() bool {
			info, err := b.API.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return info.Service.WarmReady == 2
		}, "the pool is not filled")
		s, err := b.API.Open(t.Context(), session.OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := warm()
	if !first.Warm {
		t.Fatalf("a session with a full pool is cold: %+v", first)
	}
	second := warm()
	if !second.Warm || second.Jail == first.Jail || second.Address == first.Address {
		t.Fatalf("two sessions share a warm jail: %+v %+v", first, second)
	}
	// All that shapes a jail is in the key of the pool: another limit is another jail.
	tasks := 300
	other, err := b.API.Open(t.Context(), session.OpenRequest{Limits: session.LimitsRequest{Tasks: &tasks}})
	if err != nil || other.Warm {
		t.Fatalf("a session with other limits came from the pool: %+v, %v", other, err)
	}
	for _, s := range []session.Session{first, second, other} {
		b.Close(s.ID)
	}
}

func TestAPageThatEatsMemoryHitsItsLimitAndItsNeighbourNoticesNothing(t *testing.T) {
	settings, address := testkit.Page(t, `<!doctype html><title>hog</title><script>
const all = []; setInterval(() => { const a = new Uint8Array(16 << 20); for (let i = 0; i < a.length; i += 4096) a[i] = 1; all.push(a); }, 20);
</script>`)
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool + settings})
	neighbour := b.Open(session.OpenRequest{})
	hog := b.Open(session.OpenRequest{Limits: session.LimitsRequest{Memory: "256MiB", Disk: "32MiB", SHM: "32MiB"}})
	_, _ = b.API.Navigate(t.Context(), hog, browser.Navigate{URL: address, TimeoutMS: 5000}) // its renderer may be gone before it has loaded
	testenv.Eventually(t, 60*time.Second, func() bool {
		s, err := b.API.Get(t.Context(), hog)
		if err != nil {
			t.Fatal(err)
		}
		if s.Usage != nil && s.Usage.MemoryPeak > 256<<20 {
			t.Fatalf("it got %d bytes", s.Usage.MemoryPeak)
		}
		return s.Usage != nil && slices.Contains(s.Usage.LimitsHit, jail.LimitMemory) ||
			s.Ended != nil && slices.Contains(s.Ended.LimitsHit, jail.LimitMemory)
	}, "the limit was not hit, or not named")
	if _, err := b.API.Picture(t.Context(), neighbour, browser.Screenshot{}); err != nil {
		t.Fatalf("the neighbour noticed: %v", err)
	}
	b.Close(hog)
	b.Close(neighbour)
	b.Clean(10 * time.Second)
}

func TestASessionEndsWhenItsTimeIsUpOrNobodyUsesItOrItsBrowserIsGone(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	ends := func(id string, cause session.Cause) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() bool {
			s, err := b.API.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if s.Ended != nil && s.Ended.Cause != cause {
				t.Fatalf("it ended by %s, want %s", s.Ended.Cause, cause)
			}
			return s.State == session.StateClosed
		}, "the session did not end by %s", cause)
	}
	ends(b.Open(session.OpenRequest{TTL: "2s"}), session.CauseExpired)
	ends(b.Open(session.OpenRequest{Idle: "2s"}), session.CauseIdle)
	gone := b.Open(session.OpenRequest{})
	for _, pid := range b.InJails() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	ends(gone, session.CauseBrowserExited)
	b.Clean(10 * time.Second)
}

func TestBadInputIsRefusedBeforeAnythingIsMade(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool + "sessions:\n  max: 1\n"})
	before := b.Settled()
	tasks := 0
	for what, c := range map[string]struct {
		request session.OpenRequest
		code    string
	}{
		"template that is missing": {session.OpenRequest{Template: "nosuch"}, problem.TemplateMissing},
		"template with a path":     {session.OpenRequest{Template: "../etc"}, problem.BadTemplate},
		"no tasks":                 {session.OpenRequest{Limits: session.LimitsRequest{Tasks: &tasks}}, problem.BadLimit},
		"too much memory":          {session.OpenRequest{Limits: session.LimitsRequest{Memory: "100000GiB"}}, problem.BadLimit},
		"not a size":               {session.OpenRequest{Limits: session.LimitsRequest{Memory: "lots"}}, problem.BadLimit},
		"not a duration":           {session.OpenRequest{TTL: "soon"}, problem.BadRequest},
		"longer than allowed":      {session.OpenRequest{TTL: "9999h"}, problem.BadLimit},
		"not a browser":            {session.OpenRequest{Browser: "netscape"}, problem.BadRequest},
	} {
		_, err := b.API.Open(t.Context(), c.request)
		if p, ok := problem.As(err); !ok || p.Code != c.code || p.Message == "" || p.Hint == "" {
			t.Errorf("%s: %+v (%v), want %s with a sentence and a hint", what, p, err, c.code)
		}
	}
	if made := inventory.Added(before, b.Settled()); len(made) > 0 {
		t.Errorf("refused, and on the host: %v", made)
	}
	id := b.Open(session.OpenRequest{})
	_, err := b.API.Open(t.Context(), session.OpenRequest{})
	testkit.ExpectCode(t, err, problem.TooManySessions)
	for _, address := range []string{"file:///etc/passwd", "chrome://version", "javascript:1", "not a url", "http://", "ftp://x.test/"} {
		_, err := b.API.Navigate(t.Context(), id, browser.Navigate{URL: address})
		testkit.ExpectCode(t, err, problem.BadURL)
	}
	_, err = b.API.Navigate(t.Context(), "s_0000000000000000", browser.Navigate{URL: "https://example.com/"})
	testkit.ExpectCode(t, err, problem.NotFound)
	b.Close(id)
}

func TestAMissingRuntimeIsSaidAndLeavesNothing(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool + "runtime: /nonexistent/runc\n"})
	_, err := b.API.Open(t.Context(), session.OpenRequest{})
	testkit.ExpectCode(t, err, problem.RuntimeMissing)
	b.Clean(10 * time.Second)
}

// TestAFullDiskStopsNewSessionsAndNoEnding fills the file system that journal and clones are on.
func TestAFullDiskStopsNewSessionsAndNoEnding(t *testing.T) {
	testenv.Root(t)
	dir, err := os.MkdirTemp("", "clawjail-full-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) }) // only when it is unmounted
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	b := testkit.Start(t, instance.Options{Parent: dir, Settings: testkit.NoPool})
	id := b.Open(session.OpenRequest{})
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, neverEnding{}); err == nil {
		t.Fatal("the disk is not full")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = b.API.Open(t.Context(), session.OpenRequest{})
	// The record comes first, and so does its refusal.
	if p := testkit.ExpectCode(t, err, problem.AuditUnavailable); !strings.Contains(p.Message, "full") {
		t.Errorf("it does not say that the disk is full: %s", p.Message)
	}
	b.Close(id)
	b.Clean(20 * time.Second)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	b.Close(b.Open(session.OpenRequest{}))
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

// TestTwoInstallationsDoNotTouchEachOther kills and reaps one beside the other.
func TestTwoInstallationsDoNotTouchEachOther(t *testing.T) {
	a, b := testkit.Start(t, instance.Options{Settings: testkit.NoPool}), testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	if a.HostScope().Installation == b.HostScope().Installation || a.HostScope().Subnet.Overlaps(b.HostScope().Subnet) {
		t.Fatal("they share an id or a subnet")
	}
	a.Open(session.OpenRequest{})
	kept := b.Open(session.OpenRequest{})
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Run(t.Context(), "reap"); err != nil {
			t.Fatal(err)
		}
	}
	picture, err := b.API.Picture(t.Context(), kept, browser.Screenshot{})
	if err != nil {
		t.Fatalf("the other installation's session does not work any more: %v", err)
	}
	if _, err := png.Decode(bytes.NewReader(picture)); err != nil {
		t.Fatal(err)
	}
	out, err := b.Run(t.Context(), "reap", "--json")
	if err != nil || !strings.Contains(out, `"jails": 1`) {
		t.Fatalf("reap of the other: %s, %v", out, err)
	}
	b.Close(kept)
}

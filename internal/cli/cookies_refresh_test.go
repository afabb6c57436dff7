package cli

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/testenv"
)

// printedText is what a command prints while it runs.
type printedText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printedText) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *printedText) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// waitForRefresh runs `cookies refresh example.com --wait`, does something when the link is printed, and returns how it ended.
func waitForRefresh(t *testing.T, w *fixture, then func(by identity.Principal, id string)) (status int, out, errOut string) {
	t.Helper()
	var stdout, stderr printedText
	ended := make(chan int, 1)
	go func() {
		ended <- Main(context.Background(), "v1.2.3", []string{"cookies", "refresh", "example.com", "--wait"}, &stdout, &stderr)
	}()
	testenv.Eventually(t, 10*time.Second, func() bool { return strings.Contains(stderr.String(), "open it within") }, "the link is printed")
	by := identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin, TokenID: "admin"}
	const id = "s_0000000000000001"
	then(by, id)
	if _, err := w.sessions.WaitGone(t.Context(), by, id); err != nil {
		t.Fatal(err)
	}
	return <-ended, stdout.String(), stderr.String()
}

func TestWaitingForARefreshSaysWhatWasStored(t *testing.T) {
	w := newFixture(t)
	status, out, errOut := waitForRefresh(t, w, func(by identity.Principal, id string) {
		// One attempt has what the session has not; it does not count.
		if _, err := w.accounts.FinishRefresh(t.Context(), by, credential.FinishRefresh{Session: id, Domains: []string{"example.com", "example.org"}}); err == nil {
			t.Error("cookies were stored that are not there")
		}
		if _, err := w.accounts.FinishRefresh(t.Context(), by, credential.FinishRefresh{Session: id, Domains: []string{"example.com"}}); err != nil {
			t.Error(err)
		}
	})
	if status != 0 || !strings.HasSuffix(out, "\nstored example.com: 1 cookie, for sessions with tools, at most 1 at a time\n") || strings.Contains(out+errOut, canary) {
		t.Errorf("%d\n%s\n%s", status, out, errOut)
	}
}

func TestWaitingForARefreshSaysThatNothingWasStored(t *testing.T) {
	w := newFixture(t)
	status, out, errOut := waitForRefresh(t, w, func(by identity.Principal, id string) {
		if _, err := w.sessions.Close(t.Context(), by, id); err != nil {
			t.Error(err)
		}
	})
	if status != 1 || strings.Contains(out, "stored") || !strings.Contains(errOut, "clawjail: error: nothing was stored: it was closed\n") ||
		!strings.Contains(errOut, "clawjail: hint: begin again: clawjail cookies refresh example.com\n") {
		t.Errorf("%d\n%s\n%s", status, out, errOut)
	}
}

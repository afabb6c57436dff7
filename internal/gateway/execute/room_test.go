package execute

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

// An agent needs no tool to send large bodies that never end: what they hold is bounded, and is given back.
func TestBodiesThatDoNotEndHoldABoundedAmount(t *testing.T) {
	w := newFixture(t, func(http.ResponseWriter, *http.Request) {})
	held := func() int64 {
		return w.handler.room.Amounts(quota.Holder{})[0].Held.All
	}
	const large = 9 << 20
	var group sync.WaitGroup
	codes := make(chan string, atOnce)
	var ends []*io.PipeWriter
	for range 6 {
		reader, writer := io.Pipe()
		ends = append(ends, writer)
		group.Go(func() {
			// A request that is refused does not read all of it.
			_, _ = writer.Write(bytes.Repeat([]byte(" "), large))
		})
		group.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+"/v1/execute", reader)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Content-Type", "application/json")
			resp, err := w.server.Client().Do(r)
			reader.CloseWithError(io.ErrClosedPipe)
			if err != nil {
				codes <- "" // broken off while it was written
				return
			}
			codes <- resp.Header.Get("Clawjail-Refusal") + resp.Header.Get("Retry-After")
			resp.Body.Close()
		})
	}
	select {
	case first := <-codes: // while the others wait
		if first != "" && first != problem.RateLimited+"5" {
			t.Errorf("%q", first)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody is refused")
	}
	if n := held(); n > maxHeldByAgent || n == 0 {
		t.Errorf("%d bytes are held", n)
	}
	for _, end := range ends {
		end.CloseWithError(io.ErrUnexpectedEOF)
	}
	group.Wait()
	testenv.Eventually(t, 10*time.Second, func() bool { return held() == 0 }, "something is held by nobody")
}

func TestRoomIsBoundedForOneAgentOneTenantAndAll(t *testing.T) {
	r := quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxHeld, Agent: maxHeldByAgent, Tenants: func() int { return 2 }})
	var shares []*share
	for n, want := range []bool{true, true, true, false, false} { // 80 % of 512 MiB are three times 128 and some
		s := &share{room: r, of: quota.Holder{Tenant: "acme", Agent: string(rune('a' + n))}}
		shares = append(shares, s)
		if s.take(maxHeldByAgent + 1) {
			t.Fatal("an agent holds more than it may")
		}
		if got := s.take(maxHeldByAgent); got != want {
			t.Errorf("agent %d: %t", n, got)
		}
	}
	other := &share{room: r, of: quota.Holder{Tenant: "rival", Agent: "a"}}
	if !other.take(maxHeldByAgent) {
		t.Error("another tenant has no room")
	}
	for _, s := range append(shares, other) {
		s.end()
		s.end()
	}
	if held := r.Amounts(quota.Holder{})[0].Held.All; held != 0 {
		t.Errorf("%d bytes are left", held)
	}
}

func TestShareReadsWhatThereIs(t *testing.T) {
	for _, size := range []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 100_000, 100_001, 300_000} {
		s := &share{room: quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxHeld})}
		got, err := s.read(strings.NewReader(strings.Repeat("x", size)), 100_000, never)
		if err != nil || len(got) != min(size, 100_001) || cap(got) > 100_001 || s.n != int64(cap(got))*copies {
			t.Errorf("%d bytes: %d of %d, %v", size, len(got), s.n, err)
		}
	}
	s := &share{room: quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxHeld})}
	if _, err := s.read(io.LimitReader(neverEnding{}, 1<<30), 1<<20, func() bool { return true }); !errors.Is(err, errTooLate) {
		t.Error(err)
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return min(len(p), 10), nil }

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// claimStore is an API server that has claims, and tells of their changes whoever watches.
type claimStore struct {
	mu       sync.Mutex
	refuses  string            // of the requests: GET, WATCH, DELETE
	requests map[string]int    // by method, and WATCH
	all      map[string]string // their Sandboxes
	events   []string
	more     chan struct{} // closed when there are more
	cut      chan struct{} // closed when what is watched ends
	keeps    bool          // a claim that is deleted stays
	silent   bool          // nobody is told of anything
	before   func()        // the next list is read
}

func (s *claimStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, what := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="), r.Method
	if r.URL.Query().Get("watch") != "" {
		what = "WATCH"
	}
	switch {
	case what == s.refuses:
		w.WriteHeader(http.StatusForbidden)
	case what == "WATCH":
		s.requests["WATCH"]++
		cut := s.cut
		for at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); ; {
			for ; at < len(s.events); at++ {
				_, _ = w.Write([]byte(s.events[at]))
			}
			_ = http.NewResponseController(w).Flush()
			more := s.more
			s.mu.Unlock()
			select {
			case <-more:
			case <-cut:
			case <-r.Context().Done():
			}
			s.mu.Lock()
			if cut != s.cut || r.Context().Err() != nil {
				return
			}
		}
	case r.Method == http.MethodGet: // a page has one
		s.requests[r.Method]++
		if do := s.before; do != nil {
			s.before = nil
			s.mu.Unlock()
			do()
			s.mu.Lock()
		}
		after, next := r.URL.Query().Get("continue"), ""
		for name := range s.all {
			if name > after && (next == "" || name < next) {
				next = name
			}
		}
		if next == "" {
			_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"%d"},"items":[]}`, len(s.events))
			return
		}
		_, _ = fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[%s]}`, next, s.object(next))
	case r.Method == http.MethodDelete:
		s.requests[r.Method]++
		if _, is := s.all[name]; !is {
			_, _ = w.Write([]byte(`{"items":[]}`))
			return
		}
		_, _ = fmt.Fprintf(w, `{"items":[%s]}`, s.object(name))
		if !s.keeps {
			s.drop(name)
		}
	}
}

func (s *claimStore) object(name string) string {
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"name": name}, "status": map[string]any{"sandbox": map[string]any{"name": s.all[name]}}})
	return string(text)
}

// tell tells of a change. The caller holds s.mu.
func (s *claimStore) tell(what, name string) {
	if s.silent {
		return
	}
	s.events = append(s.events, fmt.Sprintf(`{"type":%q,"object":%s}`, what, s.object(name)))
	close(s.more)
	s.more = make(chan struct{})
}

func (s *claimStore) drop(name string) {
	s.tell("DELETED", name)
	delete(s.all, name)
}

// put makes a claim, or gives it a Sandbox.
func (s *claimStore) put(name, sandbox string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = sandbox
	s.tell("MODIFIED", name)
}

// meanwhile ends what is watched, and does something meanwhile.
func (s *claimStore) meanwhile(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
	do()
}

func (s *claimStore) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method]
}

// follows follows the claims of a store, until the test ends.
func follows(t *testing.T) (*claimStore, *claims) {
	t.Helper()
	s := &claimStore{requests: map[string]int{}, all: map[string]string{}, more: make(chan struct{}), cut: make(chan struct{})}
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	c := followClaims(apiOf(t, server), "jails", map[string]string{"of": "one"}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s, c
}

func TestClaimsAreFollowedByOneRequestForAll(t *testing.T) {
	s, c := follows(t)
	testenv.Eventually(t, 5*time.Second, func() bool { return s.count("WATCH") == 1 }, "they are followed")
	lists := s.count(http.MethodGet)
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			name := fmt.Sprintf("s-%d", n)
			c.expect(name)
			s.put(name, "")
			go s.put(name, "box-"+name)
			if box, err := c.sandbox(t.Context(), name); err != nil || box != "box-"+name {
				t.Errorf("the Sandbox of %s is %q: %v", name, box, err)
			}
			if err := c.remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if watched, listed, deleted := s.count("WATCH"), s.count(http.MethodGet)-lists, s.count(http.MethodDelete); watched != 1 || listed != 0 || deleted != 50 {
		t.Errorf("50 claims were watched %d times, listed %d times and deleted %d times", watched, listed, deleted)
	}
	if len(c.all) > 0 {
		t.Errorf("afterwards there are %v", c.all)
	}
	if err := c.remove(t.Context(), "s-0"); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

func TestAClaimThatGoesWhileNobodyTellsIsGone(t *testing.T) {
	s, c := follows(t)
	for _, name := range []string{"a", "b", "stays"} {
		s.put(name, "box-"+name)
		if _, err := c.sandbox(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	s.keeps = true
	s.mu.Unlock()
	removed := make(chan error, 1)
	go func() { removed <- c.remove(t.Context(), "a") }()
	testenv.Eventually(t, 5*time.Second, func() bool { return s.count(http.MethodDelete) == 1 }, "it is deleted")
	select {
	case err := <-removed:
		t.Errorf("it is gone while it is there: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	c.expect("later") // is not there yet, which a list does not change
	s.meanwhile(func() { delete(s.all, "a") })
	if err := <-removed; err != nil {
		t.Error(err)
	}
	s.put("later", "box-later")
	for _, name := range []string{"stays", "later"} {
		if box, err := c.sandbox(t.Context(), name); err != nil || box != "box-"+name {
			t.Errorf("the Sandbox of %s is %q: %v", name, box, err)
		}
	}

	// Who waits for the Sandbox of one that goes is told so.
	s.put("short", "")
	waited := make(chan error, 1)
	go func() {
		_, err := c.sandbox(t.Context(), "short")
		waited <- err
	}()
	testenv.Eventually(t, 5*time.Second, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.all["short"].seen
	}, "it is seen")
	time.Sleep(20 * time.Millisecond) // it is waited for
	s.mu.Lock()
	s.drop("short")
	s.mu.Unlock()
	if err := <-waited; !errors.Is(err, ErrNotFound) {
		t.Errorf("who waits for one that goes is told %v", err)
	}
}

// What is watched may say nothing for long, such as by way of a proxy. Claims are listed now and then all the same.
func TestClaimsAreKnownWhileAWatchSaysNothing(t *testing.T) {
	s, c := follows(t)
	testenv.Eventually(t, 5*time.Second, func() bool { return s.count("WATCH") == 1 }, "they are followed")
	s.mu.Lock()
	s.silent = true
	s.mu.Unlock()
	c.expect("one")
	s.put("one", "box")
	if names, err := c.names(t.Context()); err != nil || !slices.Equal(names, []string{"one"}) {
		t.Errorf("there are %v: %v", names, err)
	}
	if box, err := c.sandbox(t.Context(), "one"); err != nil || box != "box" {
		t.Errorf("its Sandbox is %q: %v", box, err)
	}
	removed := make(chan error, 1)
	// It goes after a list was asked for and before that is read.
	s.before = func() {
		go func() { removed <- c.remove(t.Context(), "one") }()
		for s.count(http.MethodDelete) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	if names, err := c.names(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("there are %v: %v", names, err)
	}
	select {
	case err := <-removed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it is waited for a claim that is gone")
	}
}

func TestWhoMayNotFollowClaimsIsToldSo(t *testing.T) {
	for _, what := range []string{http.MethodGet, "WATCH"} {
		t.Run(what, func(t *testing.T) {
			s, c := follows(t)
			testenv.Eventually(t, 5*time.Second, func() bool { return s.count("WATCH") == 1 }, "they are followed")
			s.put("one", "box")
			if _, err := c.sandbox(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
			s.meanwhile(func() { s.refuses = what })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := c.sandbox(ctx, "two"); problem.CodeOf(err) != problem.Forbidden || ctx.Err() != nil {
				t.Errorf("it is told %v", err)
			}
			s.meanwhile(func() { s.refuses = http.MethodDelete })
			if err := c.remove(ctx, "one"); problem.CodeOf(err) != problem.Forbidden {
				t.Errorf("who may not delete it is told %v", err)
			}
			s.meanwhile(func() { s.refuses, s.all["two"] = "", "later" })
			testenv.Eventually(t, 5*time.Second, func() bool {
				box, _ := c.sandbox(ctx, "two")
				return box == "later"
			}, "they are followed again")
		})
	}
}

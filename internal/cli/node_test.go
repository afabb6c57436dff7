package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// All are waited for at once, because the one that ends well takes its time.
func TestDrainingIsWaitedFor(t *testing.T) {
	cases := map[string]struct {
		states []string // of the node, one after the other; the last one stays
		wait   string
		want   string
	}{
		"empties": {states: []string{`"state":"draining","sessions":2`, `"state":"draining"`, `"state":"draining","sessions":0`}, wait: "1m"},
		"stopped": {states: []string{`"state":"stopped"`}, wait: "1m"},
		"lost":    {states: []string{`"state":"lost"`}, wait: "1m", want: problem.NodeLost},
		"resumed": {states: []string{`"state":"alive","sessions":0`}, wait: "1m", want: problem.Conflict},
		"late":    {states: []string{`"state":"draining","sessions":3`}, wait: "20ms", want: problem.Timeout},
		"unknown": {states: []string{`"state":"draining"`}, wait: "20ms", want: problem.Timeout},
	}
	var mu sync.Mutex
	asked := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if drained, is := strings.CutPrefix(r.URL.Path, "/v1/nodes/"); is && r.Method == http.MethodPost {
			name, _ := strings.CutSuffix(drained, "/drain")
			fmt.Fprintf(w, `{"name":%q,"state":"draining","sessions":2}`, name)
			asked[name] = 1
			return
		}
		var nodes []string
		for name, n := range asked {
			states := cases[name].states
			nodes = append(nodes, fmt.Sprintf(`{"name":%q,%s}`, name, states[min(n, len(states))-1]))
			asked[name]++
		}
		_, _ = io.WriteString(w, `{"nodes":[`+strings.Join(nodes, ",")+`]}`) // a command that has gone is seen below
	}))
	t.Cleanup(server.Close)
	t.Setenv(urlVariable, server.URL)
	t.Setenv(keyVariable, "cjop_1")
	var waiting sync.WaitGroup
	for name, c := range cases {
		waiting.Go(func() {
			began := time.Now()
			status, out, errs := run(t, "", "node", "drain", name, "--wait", c.wait)
			if !strings.Contains(out, name+" opens no new sessions, and has 2 sessions") {
				t.Errorf("%s: it prints %s", name, out)
			}
			if (c.want == "") != (status == exitDone) || !strings.Contains(errs, c.want) {
				t.Errorf("%s: it ends with %d: %s", name, status, errs)
			}
			if name == "empties" && time.Since(began) < drainHeard {
				t.Errorf("it ends after %s, before the control plane has heard of it", time.Since(began))
			}
		})
	}
	waiting.Wait()
	if status, _, errs := run(t, "", "node", "drain", "empties", "--wait", "-1s"); status == exitDone || !strings.Contains(errs, "such as 30s") {
		t.Errorf("a negative time: %d, %s", status, errs)
	}
}

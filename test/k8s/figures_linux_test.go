//go:build k8s

package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// formPage is what bench/arena/arena.mjs uses a page for.
var formPage = `<!doctype html><title>form</title><link rel=icon href=data:,><label>Name <input id=name></label> <button id=greet>Greet</button><p id=greeting></p><ul>` +
	strings.Repeat("<li>somebody was here</li>", 40) + `</ul><script>document.querySelector('#greet').onclick = () => {
  document.querySelector('#greeting').textContent = 'Hello ' + document.querySelector('#name').value
}</script>`

// arena is a process of stock Playwright that does what it is told.
type arena struct {
	t       *testing.T
	orders  io.Writer
	answers *json.Decoder
}

func newArena(t *testing.T) *arena {
	t.Helper()
	_, node := testkit.Clients(t)
	cmd := exec.Command(node, filepath.Join(testenv.Repository(t), "bench/arena/arena.mjs"))
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = orders.Close() // it ends with its input
		_ = cmd.Wait()
	})
	return &arena{t, orders, json.NewDecoder(answers)}
}

// do returns what each stage took, in milliseconds, and whether the session was warm.
func (a *arena) do(order map[string]any) (stages map[string]float64, warm bool) {
	a.t.Helper()
	var out struct {
		Warm   bool
		Stages map[string]float64
		Error  string
	}
	if err := json.NewEncoder(a.orders).Encode(order); err != nil {
		a.t.Fatal(err)
	}
	if err := a.answers.Decode(&out); err != nil || out.Error != "" {
		a.t.Fatalf("%v: %v %s", order["order"], err, out.Error)
	}
	return out.Stages, out.Warm
}

// sample are milliseconds.
type sample []float64

func (s sample) at(share float64) float64 {
	all := slices.Sorted(slices.Values(s))
	return all[min(len(all)-1, int(share*float64(len(all))))]
}

func (s sample) String() string { return fmt.Sprintf("%8.2f ms (p95 %.2f)", s.at(0.5), s.at(0.95)) }

// What a client waits for on Kubernetes, and by way of another control plane, beside a single machine.
func TestFiguresBesideASingleMachine(t *testing.T) {
	const rounds, scripts = 5, 4
	a := newArena(t)
	c := theCluster(t)
	c.furnish("figures")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, formPage) // the browser may have left
	}))
	t.Cleanup(site.Close)
	at, err := url.Parse(site.URL)
	c.must(err)
	const host = "page.clawjail.test"
	page := "http://" + host + ":" + at.Port() + "/"
	gateway := func(port int) string {
		return fmt.Sprintf("gateway:\n  port: %d\n  private_destinations:\n    - {host: %s, address: 127.0.0.1, ports: [%s]}\n", port, host, at.Port())
	}
	database := testkit.OnPostgreSQL(t)
	node := func(n int, more string) *testkit.Installation {
		return testkit.Prepare(t, instance.Options{Settings: more + gateway(proxyPort(n)) + database + settingsOf(t, n, c.settings("figures", "browser")) + "  warm: 2\n"})
	}
	first, second := node(1, ""), node(2, testkit.NoPool)
	c.enforce(podPort(1), proxyPort(1), podPort(2), proxyPort(2))
	single := testkit.Start(t, instance.Options{Settings: gateway(proxyPort(0))})
	first.Up()
	second.Up()
	second.Join(first)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.kubectl("", "-n", "figures", "get", "events"), first.Log(), second.Log())
		}
	})
	full := func(all ...*testkit.Installation) {
		t.Helper()
		for _, one := range all {
			testenv.Eventually(t, time.Minute, func() bool {
				info, err := one.API.Info(t.Context())
				return err == nil && info.Service.WarmReady == info.Service.WarmSize && info.Service.Closing == 0
			}, "the pool is not full")
		}
		c.until("pods wait", nil, func() error {
			if got := c.kubectl("", "-n", "figures", "get", "sandboxwarmpools", "-l", "clawjail.io/node=node-2", "-o", "jsonpath={.items[*].status.readyReplicas}"); got != "2" {
				return fmt.Errorf("%q are ready", got)
			}
			return nil
		})
		time.Sleep(200 * time.Millisecond) // a browser goes on for a moment after its first answer
	}
	table := map[string]sample{}
	add := func(name string, ms float64) { table[name] = append(table[name], ms) }

	// The whole life of a session, from a pool of browsers, and from a pool of pods in which nothing runs yet.
	const pods = "Kubernetes, of pods alone"
	where := map[string]*testkit.Installation{"a single machine": single, "Kubernetes": first, pods: second}
	first.Close(first.Open(session.OpenRequest{}))
	second.Close(second.Open(session.OpenRequest{})) // makes its pool
	full(single, first)
	for n := range rounds + 1 {
		for name, one := range where {
			stages, warm := a.do(map[string]any{"order": "session", "api": one.URL(), "key": one.Key(), "page": page})
			if warm != (name != pods) {
				t.Errorf("%s: warm is %t", name, warm)
			}
			for stage, ms := range stages {
				if n > 0 { // before that it fills caches
					add(stage+", "+name, ms)
				}
			}
			full(single, first)
		}
	}

	// A session of one control plane that is used at it, and by way of the other one.
	s, err := second.API.Open(t.Context(), session.OpenRequest{})
	c.must(err)
	ways := map[string]*testkit.Installation{"its own": second, "another": first}
	endpoints := map[string]string{}
	for name, one := range ways {
		token, err := one.API.SessionToken(t.Context(), s.ID, api.TokenRequest{Scope: identity.ScopeCDP})
		c.must(err)
		endpoints[name] = token.WSURL
	}
	var added sample
	for range 500 {
		took := map[string]float64{}
		for name, one := range ways {
			began := time.Now()
			_, err := one.API.Get(t.Context(), s.ID)
			c.must(err)
			took[name] = float64(time.Since(began).Microseconds()) / 1000
			add("a request, by "+name+" control plane", took[name])
		}
		added = append(added, took["another"]-took["its own"])
	}
	ratios := map[string]sample{}
	for n := range scripts + 1 {
		took := map[string]map[string]float64{}
		for name, endpoint := range endpoints {
			took[name], _ = a.do(map[string]any{"order": "script", "url": endpoint, "page": page, "times": 20})
		}
		if n == 0 {
			continue
		}
		for name, stages := range took {
			for stage, ms := range stages {
				add("a script's "+stage+", by "+name+" control plane", ms)
			}
		}
		whole := func(name string) (sum float64) {
			for _, ms := range took[name] {
				sum += ms
			}
			return sum
		}
		ratios["the whole script"] = append(ratios["the whole script"], whole("another")/whole("its own"))
		ratios["its calls alone"] = append(ratios["its calls alone"], took["another"]["calls"]/took["its own"]["calls"])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c.must(second.API.Close(ctx, s.ID, true))

	for _, name := range slices.Sorted(maps.Keys(table)) {
		t.Logf("%-60s %s", name, table[name])
	}
	t.Logf("another control plane adds %.2f ms to a request (p95 %.2f)", added.at(0.5), added.at(0.95))
	for name, all := range ratios {
		t.Logf("by way of another control plane %s takes %.3f times as long", name, all.at(0.5))
	}
	// The page of Kubernetes names what was seen. This is for what is far from it.
	if p50 := table["create, Kubernetes"].at(0.5); p50 > 150 {
		t.Errorf("a warm session is there after %.1f ms", p50)
	}
	if p50 := added.at(0.5); p50 > 3 {
		t.Errorf("another control plane adds %.1f ms", p50)
	}
	if p50 := ratios["the whole script"].at(0.5); p50 > 1.2 {
		t.Errorf("a script takes %.2f times as long", p50)
	}
}

//go:build linux

package agents

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestAnAgentHasATaskDoneFromItsJail has a browser in a jail of its own reach a goal, for an agent that asks from its jail, and for
// an operator. Each way to stop it ends the request to the model.
func TestAnAgentHasATaskDoneFromItsJail(t *testing.T) {
	testenv.Template(t)
	settings, page := testkit.Page(t, `<!doctype html><title>Tea</title><p>Price: 4.20</p>`)
	e := testkit.NewEstate(t, settings)
	var slow atomic.Bool
	thinks, left := make(chan struct{}, 10), make(chan struct{}, 10)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if slow.Load() {
			thinks <- struct{}{}
			<-r.Context().Done()
			left <- struct{}{}
			return
		}
		answer := `\"unknown\"`
		if strings.Contains(string(body), "Price: 4.20") {
			answer = "4.2"
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","tool_calls":`+
			`[{"id":"c1","type":"function","function":{"name":"act","arguments":"{\"do\":\"done\",\"answer\":%s}"}}]}}],"usage":{"prompt_tokens":900,"completion_tokens":9,"total_tokens":909}}`, answer)
	}))
	t.Cleanup(model.Close)
	_, port, _ := net.SplitHostPort(model.Listener.Addr().String())
	e.Sync("clawbots:\n  - {name: shopper, command: [/bin/sleep, '100000']}\n")
	e.Running("shopper")
	for _, args := range [][]string{
		{"provider", "add", "models", "--wire", "openai", "--url", "http://models.test:" + port, "--address", "127.0.0.1", "--model", "small", "--inject", "none", "--agent", "shopper"},
		{"agent", "limits", "shopper", "--browser", "open"},
	} {
		if out, err := e.Run(t.Context(), args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	asking := fmt.Sprintf(`curl -sS -m 60 "http://gateway:3000/v1/tasks?progress=true" -H "Authorization: Bearer $(cat /run/hermit/token)" -H 'Content-Type: application/json' `+
		`-d '{"goal":"price of tea","url":"%s","schema":{"type":"number"},"record":"audit"}'`, page)
	out := e.MustIn("shopper", asking)
	for _, want := range []string{`"do":"open a session"`, `"do":"navigate ` + page, `{"result":{"answer":4.2,"session":"s_`, `"model":"small"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the answer has no %s:\n%s", want, out)
		}
	}
	out, err := e.Run(t.Context(), "run-task", "--agent", "shopper", "--url", page, "price of tea")
	if err != nil || strings.TrimSpace(out) != "4.2" {
		t.Errorf("%q, %v", out, err)
	}
	if usage, err := e.Run(t.Context(), "usage", "--json"); err != nil || !strings.Contains(usage, `"input_tokens": 1800`) {
		t.Errorf("%s, %v", usage, err)
	}

	slow.Store(true)
	stopped := make(chan error, 1)
	go func() {
		_, err := e.In("shopper", asking+" & echo $! >/tmp/asking; wait $!")
		stopped <- err
	}()
	waits := func(end chan struct{}, what string) {
		t.Helper()
		select {
		case <-end:
		case <-time.After(testenv.Patience * 20 * time.Second):
			t.Fatalf("the model is not %s", what)
		}
	}
	waits(thinks, "asked")
	e.MustIn("shopper", "kill $(cat /tmp/asking)")
	waits(left, "left")
	if err := <-stopped; err == nil {
		t.Error("curl has an answer")
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		open, err := e.API.List(t.Context(), false)
		return err == nil && len(open) == 0
	}, "a session is open")
}

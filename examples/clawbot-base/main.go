// Command clawbot is the smallest agent that does something: it waits for its token, lets the gateway make a request for it,
// and prints what happens as JSON lines. It uses nothing but the standard library. The same is in agent.py and agent.sh.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// most is how much of an answer is read.
const most = 1 << 20

type agent struct {
	name, gateway, tokenFile, target string
	pause                            time.Duration
	client                           *http.Client
}

func main() {
	a := &agent{
		name:      setting("AGENT_NAME", "clawbot"),
		gateway:   strings.TrimSuffix(setting("SHELL_URL", "http://gateway:3000"), "/"),
		tokenFile: setting("CLAWBOT_TOKEN_FILE", "/run/hermit/token"),
		target:    setting("CLAWBOT_TARGET", "https://api.example.com/status"),
		// The gateway is spoken to directly: it is the proxy of everything else.
		client: &http.Client{Transport: &http.Transport{Proxy: nil}, Timeout: 40 * time.Second},
	}
	var err error
	if a.pause, err = time.ParseDuration(setting("CLAWBOT_PAUSE", "60s")); err != nil || a.pause <= 0 {
		fmt.Fprintln(os.Stderr, "CLAWBOT_PAUSE is not a duration such as 60s")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if address := setting("CLAWBOT_WEBHOOK", ""); address != "" {
		go a.listen(address)
	}
	a.run(ctx)
}

func setting(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (a *agent) run(ctx context.Context) {
	a.say("started", nil)
	defer a.say("stopped", nil)
	for token := ""; token == ""; {
		if token = a.token(); token == "" && !rest(ctx, 200*time.Millisecond) {
			return
		}
	}
	a.say("token", nil)
	for {
		status, err := a.execute(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.say("failed", map[string]any{"error": err.Error()})
		default:
			a.say("executed", map[string]any{"status": status})
		}
		if !rest(ctx, a.pause) {
			return
		}
	}
}

// token is read anew each time: it is rotated by replacing the file.
func (a *agent) token() string {
	data, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// execute asks the gateway to make a request. The list of requests that it may ask for is tools: in clawbots.yml.
func (a *agent) execute(ctx context.Context) (int, error) {
	body, err := json.Marshal(map[string]any{"url": a.target, "method": "GET"})
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.gateway+"/v1/execute", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+a.token())
	answer, err := a.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, most))
	return answer.StatusCode, err
}

// listen takes webhooks: POST /v1/agents/NAME/webhook of the API ends at port 8000, when clawbots.yml says webhook: true.
func (a *agent) listen(address string) {
	server := &http.Server{
		Addr: address, ReadTimeout: 30 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/webhook" {
				http.NotFound(w, r)
				return
			}
			n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, most))
			if err != nil {
				http.Error(w, "the body could not be read", http.StatusBadRequest)
				return
			}
			a.say("webhook", map[string]any{"bytes": n})
			w.WriteHeader(http.StatusNoContent)
		}),
	}
	if err := server.ListenAndServe(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		a.say("failed", map[string]any{"error": err.Error()})
	}
}

// say prints one event: a JSON object on a line.
func (a *agent) say(kind string, more map[string]any) {
	event := map[string]any{"type": kind, "agent": a.name, "at": time.Now().UTC().Format(time.RFC3339)}
	for k, v := range more {
		event[k] = v
	}
	line, err := json.Marshal(event)
	if err != nil {
		return // it holds texts and numbers only
	}
	os.Stdout.Write(append(line, '\n'))
}

func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

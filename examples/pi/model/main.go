// Command model is a server with the API of OpenAI's chat completions, and a model that always does the same: asked for
// anything, it writes a file, opens a browser session in a jail, reads a page, closes the session and says how that went.
// It stands in for a real model, so that the example needs none and always ends the same way. The page is its own too.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"
)

// message is as much of one as the model looks at.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// text is what a message says: its content is a text, or parts that have one each.
func (m message) text() string {
	var whole string
	if json.Unmarshal(m.Content, &whole) == nil {
		return whole
	}
	var parts []struct{ Text string }
	if json.Unmarshal(m.Content, &parts) != nil {
		return ""
	}
	for _, p := range parts {
		whole += p.Text + "\n"
	}
	return whole
}

// call is a call of a tool.
type call struct {
	name      string
	arguments map[string]any
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "where to answer")
	page := flag.String("page", "", "the page that the browser opens (default /page of this server, as http://page.internal)")
	key := flag.String("key", "", "the key that requests must have; empty is any")
	flag.Parse()
	if _, port, err := net.SplitHostPort(*listen); err == nil && *page == "" {
		*page = "http://page.internal:" + port + "/page"
	}
	http.HandleFunc("GET /page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>A page for pi</title><h1>Hello from the host</h1>") // the browser may have left
	})
	http.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if *key != "" && r.Header.Get("Authorization") != "Bearer "+*key {
			http.Error(w, `{"error":{"message":"the key is wrong"}}`, http.StatusUnauthorized)
			return
		}
		if err := answer(w, r, *page); err != nil {
			log.Print(err)
			http.Error(w, `{"error":{"message":"the request is not understood"}}`, http.StatusBadRequest)
		}
	})
	log.Printf("model: http://%s/v1", *listen)
	server := &http.Server{Addr: *listen, ReadHeaderTimeout: 10 * time.Second}
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// next is what the model does after so many results of tools, with the session that one of them spoke of; nil is that it is
// done.
func next(done int, session, page string) *call {
	calls := []call{
		{"write", map[string]any{"path": "hello.txt", "content": "written by pi in its jail\n"}},
		{"browser_open_session", map[string]any{}},
		{"browser_navigate", map[string]any{"session": session, "url": page}},
		{"browser_close_session", map[string]any{"session": session}},
	}
	if done >= len(calls) {
		return nil
	}
	return &calls[done]
}

func answer(w http.ResponseWriter, r *http.Request, page string) error {
	var request struct {
		Model    string    `json:"model"`
		Stream   bool      `json:"stream"`
		Messages []message `json:"messages"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&request); err != nil {
		return err
	}
	done, session, title, problem := 0, "", "", ""
	for _, m := range request.Messages {
		switch m.Role {
		case "user":
			done, title, problem = 0, "", ""
		case "tool":
			done++
			text := m.text()
			if failed := regexp.MustCompile(`^(?:error|[45][0-9][0-9]) .*`).FindString(text); failed != "" && problem == "" {
				problem = failed
			}
			if read := regexp.MustCompile(`^200 \S+ "(.*)" in `).FindStringSubmatch(text); read != nil {
				title = read[1]
			}
			if id := regexp.MustCompile(`session (s_[a-z0-9]+) is open`).FindStringSubmatch(text); id != nil {
				session = id[1]
			}
		}
	}
	said := fmt.Sprintf("Done: hello.txt is written, and a browser of its own has read the page %q.", title)
	if problem != "" {
		said = "Not all of it is done: " + problem
	}
	reply := map[string]any{"role": "assistant", "content": said}
	reason := "stop"
	if c := next(done, session, page); c != nil {
		arguments, err := json.Marshal(c.arguments)
		if err != nil {
			return err
		}
		reason = "tool_calls"
		reply = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
			"index": 0, "id": fmt.Sprintf("call_%d", done), "type": "function",
			"function": map[string]any{"name": c.name, "arguments": string(arguments)}}}}
	}
	usage := map[string]any{"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
	if !request.Stream {
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "created": time.Now().Unix(), "model": request.Model,
			"choices": []any{map[string]any{"index": 0, "message": reply, "finish_reason": reason}}, "usage": usage})
	}
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := func(choices []any, more map[string]any) error {
		body := map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": time.Now().Unix(), "model": request.Model, "choices": choices}
		for k, v := range more {
			body[k] = v
		}
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "data: %s\n\n", text)
		return err
	}
	err := errors.Join(
		chunk([]any{map[string]any{"index": 0, "delta": reply}}, nil),
		chunk([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": reason}}, nil),
		chunk([]any{}, map[string]any{"usage": usage}))
	if err != nil {
		return err
	}
	_, err = strings.NewReader("data: [DONE]\n\n").WriteTo(w)
	return err
}

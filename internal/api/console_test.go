package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/problem"
)

// fakeConsole says where it was asked.
func fakeConsole(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "console at ", r.URL.Path) }

func TestTheConsoleHasItsPathsAndKnowsPeopleItself(t *testing.T) {
	d := newTestAPI(t, func(o *Options) { o.Console = http.HandlerFunc(fakeConsole) })
	for path, want := range map[string]int{"/": 200, "/console": 200, "/console/": 200, "/console/sessions/x": 200,
		"/consoles": 401, "/v1/sessions": 401, "/console.js": 401, "/v1/console/links": 401} {
		// As a link on a page of somebody else's does, and as its form would: what it may is the console's to say.
		for _, from := range []string{"", "https://elsewhere.example"} {
			a := d.ask(t, "GET", path, "", anonymous, func(r *http.Request) {
				if from != "" {
					r.Header.Set("Origin", from)
					r.Header.Set("Sec-Fetch-Site", "cross-site")
				}
			})
			status := want
			if want == 401 && from != "" {
				status = 403 // the API is for no page
			}
			if a.StatusCode != status || status == 200 && a.body != "console at "+path {
				t.Errorf("%s from %q: %d %s", path, from, a.StatusCode, a.body)
			}
			if a.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: %v", path, a.Header)
			}
			if status == 200 && (a.Header.Get("Cache-Control") != "" || a.Header.Get("Cross-Origin-Resource-Policy") != "") {
				t.Errorf("%s: what the console decides was decided: %v", path, a.Header)
			}
		}
	}
	noCalls(t, d)
}

func TestTheConsoleIsNotReachedByAnotherName(t *testing.T) {
	d := newTestAPI(t, func(o *Options) { o.Console = http.HandlerFunc(fakeConsole) })
	for _, path := range []string{"/", "/console/sessions"} {
		d.ask(t, "GET", path, "", func(r *http.Request) { r.Host = "rebound.example" }).wantProblem(t, 403, problem.Forbidden)
	}
}

func TestWithoutAConsoleThereIsNothing(t *testing.T) {
	d := newTestAPI(t)
	for _, path := range []string{"/", "/console", "/console/x"} {
		d.ask(t, "GET", path, "", anonymous).wantProblem(t, 401, problem.Unauthorized)
		d.ask(t, "GET", path, "").wantProblem(t, 404, problem.NotFound)
	}
}

// Agents have no console, also not by the address that they have.
func TestTheConsoleIsNotInsideJails(t *testing.T) {
	d := newTestAPI(t, func(o *Options) { o.Console = http.HandlerFunc(fakeConsole) })
	inside := d.Inside(func(context.Context) string { return "ag_1" }, func(string) bool { return true })
	for _, path := range []string{"/", "/console"} {
		out := (&testAPI{API: &API{handler: inside}, key: d.key}).ask(t, "GET", path, "")
		if out.StatusCode != 404 || strings.Contains(out.body, "console at") {
			t.Errorf("%s: %d %s", path, out.StatusCode, out.body)
		}
	}
}

// Serve waits for the console's sockets, and ends what lasts.
func TestWhatLastsInTheConsoleEndsWithTheServer(t *testing.T) {
	for _, kind := range []string{"socket", "events"} {
		t.Run(kind, func(t *testing.T) {
			arrived, cause := make(chan struct{}), make(chan error, 1)
			d := newTestAPI(t, func(o *Options) {
				o.Console = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					var conn *websocket.Conn
					if kind == "socket" {
						var err error
						if conn, err = websocket.Accept(w, r, nil); err != nil {
							t.Error(err)
							return
						}
					}
					close(arrived)
					<-r.Context().Done()
					if conn != nil {
						_ = conn.CloseNow()
					}
					cause <- context.Cause(r.Context()) // before Serve returns
				})
			})
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			served := make(chan error, 1)
			go func() { served <- d.Serve(ctx, listener) }()
			url := "http://" + listener.Addr().String() + "/console/x"
			left := make(chan struct{})
			go func() {
				defer close(left)
				if kind == "socket" {
					if conn, _, err := websocket.Dial(context.Background(), url, nil); err == nil {
						_, _, _ = conn.Read(context.Background()) // until it is closed
						_ = conn.CloseNow()
					}
					return
				}
				request, _ := http.NewRequest("GET", url, nil)
				request.Header.Set("Accept", "text/event-stream")
				transport := &http.Transport{DisableKeepAlives: true}
				if response, err := transport.RoundTrip(request); err == nil {
					_ = response.Body.Close()
				}
			}()
			<-arrived
			end()
			select {
			case err := <-served:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the server does not end")
			}
			select {
			case why := <-cause:
				if problem.CodeOf(why) != problem.ShuttingDown {
					t.Errorf("it ended with %v", why)
				}
			default:
				t.Fatal("the server did not wait")
			}
			<-left
		})
	}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

func TestMain(m *testing.M) {
	testscript.Main(leakFree{m}, map[string]func(){
		"clawjail": func() { os.Exit(Main(context.Background(), "v1.2.3", os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// leakFree runs the tests and then looks for goroutines that they left.
type leakFree struct{ m *testing.M }

func (l leakFree) Run() int {
	status := l.m.Run()
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("CLAWJAIL_CONFIG", filepath.Join(e.WorkDir, "clawjail.yml"))
			settings := fmt.Sprintf("data_dir: %s/data\nrun_dir: /tmp/clawjail-test-no-such-folder\nlisten: 127.0.0.1:1\n", e.WorkDir)
			return os.WriteFile(filepath.Join(e.WorkDir, "clawjail.yml"), []byte(settings), 0o600)
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"controlplane": startControlPlane, "elsewhere": startElsewhere, "status": wantStatus,
		},
	})
}

// wantStatus is `status N clawjail …`: the command must end with that status.
func wantStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N clawjail …")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit interface{ ExitCode() int }
		if !errors.As(err, &exit) {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("it ended with status %d, want %s", got, args[0])
	}
}

// startControlPlane is `controlplane`: the real API in front of sessions in memory, until the script ends.
func startControlPlane(ts *testscript.TestScript, _ bool, _ []string) {
	text := api.NewKey()
	key, err := api.ParseKey(text)
	ts.Check(err)
	a, err := api.New(api.Options{Sessions: &inMemory{all: map[string]*session.Session{}}, Key: key, Version: "v1.2.3",
		Listen: netip.MustParseAddrPort("127.0.0.1:18780"),
		Host:   func(context.Context) (api.HostInfo, error) { return api.HostInfo{}, nil }})
	ts.Check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, listener) }()
	ts.Defer(func() {
		end()
		ts.Check(<-served)
	})
	ts.Setenv("CLAWJAIL_URL", "http://"+listener.Addr().String())
	ts.Setenv("CLAWJAIL_ADMIN_KEY", text)
}

// startElsewhere is `elsewhere`: a server that is not a control plane, and sends whoever asks it somewhere else. It
// writes the keys that it is sent there to the file stolen.
func startElsewhere(ts *testscript.TestScript, _ bool, _ []string) {
	stolen := ts.MkAbs("stolen")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			_ = os.WriteFile(stolen, []byte(r.Header.Get(api.KeyHeader)), 0o600) // the script looks for it
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ts.Defer(func() {
		ts.Check(server.Close())
		<-served
	})
	ts.Setenv("CLAWJAIL_URL", "http://"+listener.Addr().String())
	ts.Setenv("CLAWJAIL_ADMIN_KEY", "cjadm_1234")
}

// inMemory are sessions without jails.
type inMemory struct {
	mu    sync.Mutex
	all   map[string]*session.Session
	count int
}

func (s *inMemory) Open(_ context.Context, r session.Request) (session.Session, error) {
	if r.Label == "full" {
		return session.Session{}, problem.New(problem.TooManySessions, "close one", "64 sessions are open, and more are not allowed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	now := time.Now()
	out := session.Session{ID: fmt.Sprintf("s_%016d", s.count), Label: r.Label, State: session.StateReady, Browser: "shell",
		Template: "browser", Record: "transient", Jail: fmt.Sprintf("babcd%05d", s.count), Address: "10.213.0.150", Created: now, Warm: s.count == 1,
		Timing: session.Timing{Total: 2.5}}
	if r.Browser != "" {
		out.Browser = r.Browser
	}
	if r.Limits.Tasks != nil {
		out.Label = fmt.Sprintf("tasks=%d", *r.Limits.Tasks)
	}
	s.all[out.ID] = &out
	return out, nil
}

func (s *inMemory) find(id string) (*session.Session, error) {
	if out := s.all[id]; out != nil {
		return out, nil
	}
	return nil, problem.New(problem.NotFound, "list them: clawjail session ls", "there is no session %q", id)
}

func (s *inMemory) Get(_ context.Context, id string) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	return *out, nil
}

func (s *inMemory) List(_ context.Context, all bool) ([]session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []session.Session{}
	for n := range s.count {
		one := s.all[fmt.Sprintf("s_%016d", n+1)]
		if all || one.State == session.StateReady {
			out = append(out, *one)
		}
	}
	return out, nil
}

func (s *inMemory) Close(_ context.Context, id string) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	out.State = session.StateClosing
	out.Ended = &session.Ended{Cause: session.CauseClosed, Message: "it was closed", At: time.Now()}
	return *out, nil
}

func (s *inMemory) WaitGone(_ context.Context, id string) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	out.State = session.StateClosed
	return *out, nil
}

func (s *inMemory) Navigate(_ context.Context, _, url string, timeout time.Duration) (browser.Result, error) {
	switch {
	case strings.Contains(url, "blocked"):
		return browser.Result{}, problem.New(problem.NavigationFailed, "ask the operator to allow the host", "the page could not be loaded")
	case strings.Contains(url, "hostile"):
		return browser.Result{URL: url, Title: "a\x1b[2Jb", Status: 200, LoadMS: 12}, nil
	}
	return browser.Result{URL: url, Title: "Example " + timeout.String(), Status: 200, LoadMS: 12}, nil
}

func (s *inMemory) Screenshot(_ context.Context, _ string, o browser.ScreenshotOptions, _ time.Duration) ([]byte, error) {
	return fmt.Appendf(nil, "%s full=%t %dx%d q%d", o.Format, o.FullPage, o.Width, o.Height, o.Quality), nil
}

func (s *inMemory) Recorded(context.Context, string, int) ([]byte, string, error) {
	return nil, "", problem.New(problem.NotFound, "", "there is none")
}

func (s *inMemory) Status() session.Status { return session.Status{} }

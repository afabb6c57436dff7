package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestOpenTunnelsEndWhenTheirRuleDoes(t *testing.T) {
	all := policy.Rule{Name: "all", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.Ports(443), Opaque: true}
	no := policy.Rule{Name: "no", Action: policy.Deny, Host: policy.MustParsePattern("example.com"), Ports: policy.AnyPort()}
	for name, c := range map[string]struct {
		then []policy.Rule
		once bool
		ends bool
	}{
		"nothing changed":                {[]policy.Rule{all}, false, false},
		"another rule allows it":         {[]policy.Rule{{Name: "other", Action: policy.Allow, Host: policy.MustParsePattern("example.com"), Ports: policy.Ports(443), Opaque: true}}, false, false},
		"nobody knows the rules":         {[]policy.Rule{{Name: policy.RuleUnknown, Action: policy.Deny, Host: policy.AnyHost(), Ports: policy.AnyPort()}}, false, false},
		"the rule is gone":               {nil, false, true},
		"the rule was for one use":       {nil, true, false},
		"a rule denies it":               {[]policy.Rule{no, all}, false, true},
		"a rule denies what had one use": {[]policy.Rule{no}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Pointer[policy.Compiled]
			now.Store(permit(t, policy.Only(all)))
			w := newFixture(t, func(o *Config) {
				o.Policy = func(Caller) *policy.Compiled { return now.Load() }
				o.Used = func(context.Context, string) (bool, bool) { return true, c.once }
			})
			w.public("example.com", "93.184.216.34", server(t, echo).Addr())
			w.admit(jailA, policy.Only())
			conn, br := w.connect(jailA, "example.com:443")
			say := func() error {
				if _, err := io.WriteString(conn, "x"); err != nil {
					return err
				}
				_, err := br.ReadByte()
				return err
			}
			if err := say(); err != nil {
				t.Fatal(err)
			}
			now.Store(permit(t, policy.Only(c.then...)))
			w.g.reviewUnderWay()
			if err := say(); (err != nil) != c.ends {
				t.Fatalf("the tunnel ends: %v", err)
			}
			if !c.ends {
				return
			}
			eventually(t, func() bool { return len(w.ended()) == 1 }, "the tunnel has no outcome")
			if o := w.ended()[0]; o.Code != problem.HostDenied {
				t.Errorf("%+v", o)
			}
		})
	}
}

func TestTunnelsAreReviewedByThemselves(t *testing.T) {
	var now atomic.Pointer[policy.Compiled]
	now.Store(permit(t, policy.PublicWeb()))
	w := newFixture(t, func(o *Config) { o.Policy = func(Caller) *policy.Compiled { return now.Load() } })
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, policy.Only())
	conn, br := w.connect(jailA, "example.com:443")
	if _, err := conn.Write(clientHello(t, "example.com")); err != nil {
		t.Fatal(err)
	}
	if _, err := br.ReadByte(); err != nil {
		t.Fatal(err)
	}
	now.Store(permit(t, policy.Only()))
	// Ends, or fails at the connection's deadline.
	if _, err := io.Copy(io.Discard, br); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the tunnel goes on without a rule")
	}
}

// lasting answers /echo as a WebSocket, /whole at once, and other requests with a byte for each that comes from more: /stream has its
// header at once.
func lasting(t *testing.T) (asked <-chan struct{}, more chan<- struct{}, site net.Addr) {
	asks, bytes := make(chan struct{}, 1), make(chan struct{}, 1)
	return asks, bytes, web(t, func(rw http.ResponseWriter, r *http.Request) {
		asks <- struct{}{}
		if r.URL.Path == "/echo" {
			echoAfterUpgrade(rw, r)
			return
		}
		if r.URL.Path == "/whole" {
			_, _ = io.WriteString(rw, "x")
			return
		}
		control := http.NewResponseController(rw)
		if r.URL.Path == "/stream" {
			_ = control.Flush()
		}
		for {
			select {
			case <-bytes:
			case <-r.Context().Done():
				return
			}
			_, _ = io.WriteString(rw, "x")
			_ = control.Flush()
		}
	}).Listener.Addr()
}

func TestWhatIsUnderWayEndsWhenItsRuleDoes(t *testing.T) {
	const upgrade = "Host: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	web80 := policy.Rule{Name: "web", Action: policy.Allow, Host: policy.MustParsePattern("example.com"), Ports: policy.Ports(80)}
	path := func(name string) policy.Rule {
		r := web80
		r.Name, r.Path = "path", policy.MustParsePath(name)
		return r
	}
	for name, c := range map[string]struct {
		tunnel   bool
		request  string
		later    []policy.Rule
		goesOn   bool
		answered bool // after the review, with a refusal or with the answer
	}{
		"a WebSocket":                        {request: "GET http://example.com/echo HTTP/1.1\r\n" + upgrade},
		"a WebSocket that may go on":         {request: "GET http://example.com/echo HTTP/1.1\r\n" + upgrade, later: []policy.Rule{path("/echo")}, goesOn: true},
		"a WebSocket within a tunnel":        {tunnel: true, request: "GET /echo HTTP/1.1\r\n" + upgrade},
		"one that may go on there":           {tunnel: true, request: "GET /echo HTTP/1.1\r\n" + upgrade, later: []policy.Rule{path("/echo")}, goesOn: true},
		"a stream":                           {request: "GET http://example.com/stream HTTP/1.1\r\nHost: example.com\r\n\r\n", later: []policy.Rule{path("/other")}},
		"a stream that may go on":            {request: "GET http://example.com/stream HTTP/1.1\r\nHost: example.com\r\n\r\n", later: []policy.Rule{path("/stream")}, goesOn: true},
		"an answer that is waited for":       {request: "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", answered: true},
		"an answer that may be waited for":   {request: "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", later: []policy.Rule{path("/")}, goesOn: true, answered: true},
		"a stream while nobody knows a rule": {request: "GET http://example.com/stream HTTP/1.1\r\nHost: example.com\r\n\r\n", later: []policy.Rule{denied("other"), {Name: policy.RuleUnknown, Action: policy.Deny, Host: policy.AnyHost(), Ports: policy.AnyPort()}}, goesOn: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, change := changing(t, policy.Only(web80))
			w := newFixture(t, o)
			asked, more, site := lasting(t)
			w.public("example.com", "93.184.216.34", site)
			w.admit(jailA, policy.Only())
			var conn io.ReadWriter = w.dial(jailA)
			from := bufio.NewReader(conn)
			if c.tunnel {
				conn, from = w.connect(jailA, "example.com:80")
			}
			if _, err := io.WriteString(conn, c.request); err != nil {
				t.Fatal(err)
			}
			var body io.Reader
			answer := func() int {
				resp, err := http.ReadResponse(from, nil)
				if err != nil {
					t.Fatal(err)
				}
				if body = resp.Body; resp.StatusCode == http.StatusSwitchingProtocols {
					body = from
				}
				return resp.StatusCode
			}
			next := func() error {
				if body == from {
					_, _ = io.WriteString(conn, "x")
				} else {
					more <- struct{}{}
				}
				_, err := io.ReadFull(body, make([]byte, 1))
				return err
			}
			<-asked
			if !c.answered {
				answer()
				if err := next(); err != nil {
					t.Fatal(err)
				}
			}
			change(policy.Only(c.later...))
			w.g.reviewUnderWay()
			if c.answered {
				if c.goesOn {
					more <- struct{}{}
				}
				if status := answer(); (status == 200) != c.goesOn || status != 200 && status != 403 {
					t.Fatalf("the answer has the status %d", status)
				}
			}
			if c.goesOn {
				if err := next(); err != nil {
					t.Errorf("it ends: %v", err)
				}
				return
			}
			if !c.answered {
				if err := next(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("it goes on: %v", err)
				}
			}
			eventually(t, func() bool {
				for _, o := range w.ended() {
					if o.Code == problem.HostDenied || o.Code == problem.PathDenied {
						return true
					}
				}
				return false
			}, "the outcome does not say why it ended")
		})
	}
}

func TestErrandsUnderWayEndWhenTheirPermitDoes(t *testing.T) {
	corp := policy.Rule{Name: "corp", Action: policy.Allow, Host: policy.MustParsePattern("api.corp"), Ports: policy.AnyPort(), Address: netip.MustParseAddr("127.0.0.1")}
	elsewhere := corp
	elsewhere.Address = netip.Addr{}
	for name, c := range map[string]struct {
		path   string
		later  *policy.Compiled
		goesOn bool
	}{
		"a stream that may go on":       {"/stream", permit(t, policy.Only(corp)), true},
		"a stream that leads elsewhere": {"/stream", permit(t, policy.Only(elsewhere)), false},
		"a stream without a permit":     {"/stream", nil, false},
		"an answer without a permit":    {"/", nil, false},
		"an answer that has come whole": {"/whole", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			asked, more, site := lasting(t)
			may, _ := leading(t, "api.corp", site)
			var now atomic.Pointer[policy.Compiled]
			now.Store(may)
			later := func() {
				<-asked
				now.Store(c.later)
				w.g.reviewUnderWay()
			}
			var waits sync.WaitGroup
			if c.path == "/" {
				waits.Go(later)
				defer waits.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			resp, refusal := w.g.Send(ctx, OutboundRequest{Caller: Caller{Agent: "one"}, Surface: SurfaceService, Permit: now.Load, Credential: true},
				request(t, "GET", "http://api.corp:"+port(site)+c.path, ""))
			if c.path == "/" {
				if refusal == nil || refusal.Code != problem.HostDenied {
					t.Errorf("it is answered: %v", refusal)
				}
				return
			}
			if refusal != nil {
				t.Fatal(refusal)
			}
			defer resp.Body.Close()
			if c.path == "/whole" {
				if text, err := io.ReadAll(resp.Body); string(text) != "x" || err != nil {
					t.Errorf("it is answered %q, %v", text, err)
				}
				later()
				resp.Body.Close()
				if o := w.ended(); len(o) != 1 || o[0].Code != "" {
					t.Errorf("%+v", o)
				}
				return
			}
			next := func() error {
				more <- struct{}{}
				_, err := io.ReadFull(resp.Body, make([]byte, 1))
				return err
			}
			if err := next(); err != nil {
				t.Fatal(err)
			}
			later()
			err := next()
			if c.goesOn {
				if err != nil {
					t.Errorf("it ends: %v", err)
				}
				return
			}
			if problem.CodeOf(err) != problem.HostDenied {
				t.Errorf("it goes on, or does not say why it ends: %v", err)
			}
			resp.Body.Close()
			if o := w.ended(); len(o) != 1 || o[0].Code != problem.HostDenied {
				t.Errorf("%+v", o)
			}
		})
	}
}

package gateway

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
)

// The gateway's own part is for the jails of agents: of a session's jail, where any page may ask, nothing is answered.
func TestOnlyAgentsReachWhatTheGatewayItselfAnswers(t *testing.T) {
	ln := listenOn(t, "127.0.0.1:0")
	port := ln.Addr().(*net.TCPAddr).Port
	w := newFixtureOn(t, ln, func(c *Config) {
		c.Local = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "local %s for %s", r.URL.RequestURI(), CallerOf(r.Context()).Agent)
		})
	})
	w.admit(jailA, policy.PublicWeb())
	if err := w.g.Admit(netip.MustParseAddr(jailB), Caller{Jail: "agent", Agent: "ag_1", Policy: policy.PublicWeb()}); err != nil {
		t.Fatal(err)
	}
	forms := map[string]string{
		"origin form":           "GET /v1/sessions HTTP/1.1\r\nHost: gateway:3000\r\n\r\n",
		"through the proxy":     fmt.Sprintf("GET http://gateway:%d/v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n", port),
		"by the older name":     fmt.Sprintf("GET http://hermit_shell:%d/v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n", port),
		"by the address":        fmt.Sprintf("GET http://127.0.0.1:%d/v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n", port),
		"another port":          fmt.Sprintf("GET http://gateway:%d/v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n", port-1),
		"another name":          fmt.Sprintf("GET http://other:%d/v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n", port),
		"in a tunnel to itself": fmt.Sprintf("CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n", port),
	}
	for name, request := range forms {
		_, body := w.raw(jailA, request)
		if strings.Contains(body, "local") {
			t.Errorf("%s: a session's jail is answered %q", name, body)
		}
		_, body = w.raw(jailB, request)
		want := !strings.Contains(name, "another") && !strings.Contains(name, "tunnel")
		if got := body == "local /v1/sessions for ag_1"; got != want {
			t.Errorf("%s: an agent's jail is answered %q", name, body)
		}
	}
}

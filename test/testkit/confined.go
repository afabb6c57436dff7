//go:build linux

package testkit

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// Confined is the table of what an agent can do from inside its jail, whatever makes it. It has a workspace, and other is
// another agent.
func (e *Deployment) Confined(name, other string) {
	t := e.T
	t.Helper()
	e.Running(name)
	address := e.Running(other).Jail.Address
	if got := e.MustIn(name, "id -u; id -g; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status"); got !=
		"1000\n1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n" {
		t.Errorf("an agent is %q", got)
	}
	outside := e.outside(name, other)
	for what, command := range map[string]string{
		"writing to the root":     "echo x > /etc/x",
		"writing to /usr":         "echo x > /usr/x",
		"running from /tmp":       "cp /bin/true /tmp/x && chmod +x /tmp/x && /tmp/x",
		"another agent":           "curl -s --noproxy '*' --max-time 3 http://" + address + ":8000/",
		"a port of the host":      "curl -s --noproxy '*' --max-time 3 http://gateway:" + outside + "/",
		"the Internet by itself":  "curl -s --noproxy '*' --max-time 3 http://" + ElsewhereAddress + ":" + outside + "/",
		"the Internet by a proxy": "curl -sf --max-time 5 http://web.test:" + outside + "/",
		"writing to the token":    "echo x > /run/hermit/token",
		"more than 64 tasks":      "i=0; while [ $i -lt 80 ]; do sleep 20 & i=$((i+1)); done; wait",
	} {
		if out, err := e.In(name, command); err == nil {
			t.Errorf("%s succeeds: %s", what, out)
		}
	}
	for what, command := range map[string]string{
		"writing to /state":           "echo x > /state/x",
		"writing to /workspace":       "echo x > /workspace/x",
		"writing to /tmp":             "echo x > /tmp/x",
		"running from /state":         "cp /bin/true /state/true && /state/true",
		"the gateway":                 "curl -sf --noproxy '*' -H \"Authorization: Bearer $(cat /run/hermit/token)\" \"$SHELL_URL/v1/sessions\"",
		"the token is the agent's":    "test \"$(stat -c '%a %u' /run/hermit/token)\" = '600 1000' || test \"$(stat -c '%a %u' /run/hermit/token)\" = '400 1000'",
		"no token in the environment": "! env | grep -qi claw_ && ! env | grep -q cjagt_",
	} {
		if out, err := e.In(name, command); err != nil {
			t.Errorf("%s fails: %v\n%s", what, err, out)
		}
	}
}

// ElsewhereAddress is an address of nobody's (RFC 5737), until a test gives it to this host.
const ElsewhereAddress = "198.51.100.7"

// outside opens what an agent must not reach, and sees that it could be reached: a port of this host at all its addresses,
// one of which no jail knows the way to but by routing; the same by a name, as long as a rule leads it there; and port 8000 of
// another agent. It returns the port.
func (e *Deployment) outside(name, other string) (port string) {
	t := e.T
	t.Helper()
	ip := testenv.Tool(t, "ip")
	Run(t, ip, "address", "add", ElsewhereAddress+"/32", "dev", "lo")
	t.Cleanup(func() { Run(t, ip, "address", "del", ElsewhereAddress+"/32", "dev", "lo") })
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "reached") })}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	gateway, ok := strings.CutSuffix(e.MustIn(name, "getent ahostsv4 gateway | cut -d' ' -f1 | head -n1"), "\n")
	if !ok {
		t.Fatalf("the agent does not know the gateway: %q", gateway)
	}
	for _, address := range []string{ElsewhereAddress, gateway} {
		if answer, err := http.Get("http://" + address + ":" + port + "/"); err != nil || answer.Body.Close() != nil {
			t.Fatalf("the host does not reach its own port, so a refusal shows nothing: %v", err)
		}
	}
	out, err := e.Run(t.Context(), "rules", "add", "allow", "http://web.test:"+port, "--agent", name, "--address", "127.0.0.1", "--json")
	var rule struct{ ID string }
	if err != nil || json.Unmarshal([]byte(out), &rule) != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out := e.MustIn(name, "curl -sf --max-time 10 http://web.test:"+port+"/"); out != "reached" {
		t.Fatalf("an agent does not reach what a rule allows, so a refusal shows nothing: %q", out)
	}
	if out, err := e.Run(t.Context(), "rules", "rm", rule.ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	listening := e.Command(t.Context(), "agent", "exec", other, "--", "python3", "-m", "http.server", "8000", "--bind", "0.0.0.0", "--directory", "/tmp")
	if err := listening.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listening.Process.Kill(); _ = listening.Wait() }) // the program ends with it
	address := e.Running(other).Jail.Address
	testenv.Eventually(t, 20*time.Second, func() bool {
		_, err := e.In(other, "curl -sf --noproxy '*' --max-time 3 http://"+address+":8000/")
		return err == nil
	}, "the other agent does not listen, so that it is not reached shows nothing")
	return port
}

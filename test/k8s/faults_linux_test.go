//go:build k8s

package k8s

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// api is a client of one of the control planes, by the address of its pod.
func (i *installation) api(n int) *client.Client {
	i.t.Helper()
	text, err := base64.StdEncoding.DecodeString(i.kubectl("", "-n", i.namespace, "get", "secret", release+"-tls", "-o", `jsonpath={.data.tls\.crt}`))
	i.must(err)
	key, err := os.ReadFile(i.dir + "/admin.key")
	i.must(err)
	address := i.kubectl("", "-n", i.namespace, "get", "pod", i.pod(n), "-o", "jsonpath={.status.podIP}")
	c := client.NewOwn(&url.URL{Scheme: "https", Host: address + ":18780"}, strings.TrimSpace(string(key)), i.write("tls.crt", string(text)))
	i.t.Cleanup(c.CloseIdle)
	return c
}

// signal sends something to the processes of a control plane and its host daemon.
func (i *installation) signal(n int, signal syscall.Signal) {
	i.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	i.must(err)
	sent := 0
	for _, dir := range all {
		name, _ := os.ReadFile(dir + "/root/etc/hostname") // it may have ended
		argv, _ := os.ReadFile(dir + "/cmdline")
		if strings.TrimSpace(string(name)) != i.pod(n) || !strings.HasPrefix(string(argv), "/usr/bin/clawjail\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		i.must(err)
		if err := syscall.Kill(pid, signal); err == nil {
			sent++
		}
	}
	if sent == 0 {
		i.t.Errorf("%s has no process", i.pod(n))
	}
}

// Whatever is killed while a session is opened, used or closed: no grant counts twice, accounts are free again, nothing is left in the cluster, and the record is whole.
func TestWhateverIsKilledNothingIsLeftHalfDone(t *testing.T) {
	c := theCluster(t)
	i := c.install("faults")
	const domain = "example.com"
	jar := c.write("cookies.txt", "# Netscape HTTP Cookie File\n."+domain+"\tTRUE\t/\tTRUE\t4102444800\tsid\tvalue-of-the-cookie\n")
	text, err := os.ReadFile(jar)
	c.must(err)
	c.kubectl(string(text), "-n", i.namespace, "exec", "-i", i.pod(0), "--", "/usr/bin/clawjail", "cookies", "import", "-", "--domain", domain)
	// Sessions are opened at the one that is killed, and used by way of the other.
	first, second := i.api(0), i.api(1)

	failed := map[string]int{}
	note := func(what string, err error) error {
		if err != nil {
			code := problem.CodeOf(err)
			failed[code]++
			if code == problem.Internal || code == "" {
				t.Errorf("%s fails without a reason: %v", what, err)
			}
		}
		return err
	}
	within := func(limit time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		t.Cleanup(cancel)
		return ctx
	}
	grants := 0
	open := func(at *client.Client) (string, error) {
		issued, err := client.Call(within(20*time.Second), at, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{domain}})})
		if err != nil {
			return "", note("a grant", err)
		}
		grants++
		request := session.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{domain}, Grant: grant.ParseToken(issued.Token)}
		s, err := at.Open(within(time.Minute), request)
		if note("an opening", err) == nil {
			return s.ID, nil
		}
		// The grant may have been used. Then it is not used again.
		again, second := at.Open(within(time.Minute), request)
		if second == nil {
			return again.ID, nil
		}
		note("a second opening", second)
		return "", err
	}
	use := func(id string) error {
		_, err := first.Drive(within(20*time.Second), id, browser.Tabs{})
		return err
	}
	// works waits until a session is opened, used and closed, which needs the account.
	works := func(after string) (took time.Duration) {
		t.Helper()
		began := time.Now()
		c.until("a session after "+after, nil, func() error {
			id, err := open(second)
			if err != nil {
				time.Sleep(500 * time.Millisecond) // each try takes a grant and writes to the record
				return err
			}
			return errors.Join(note("its use", use(id)), note("its end", second.Close(within(30*time.Second), id, true)))
		})
		return time.Since(began)
	}
	works("the beginning")

	restarts := func(name string) func() { return func() { c.restart(name) } }
	for _, part := range []struct {
		name     string
		kill     func()
		survives bool // sessions go on
	}{
		{"the kubelet", restarts("kubelet"), true},
		{"containerd", restarts("containerd"), true},
		{"the controller of agent-sandbox", restarts("agent-sandbox-controller"), true},
		{"the API server", restarts("kube-apiserver"), true},
		{"PostgreSQL", func() { i.server.Crash(t); i.server.Go(t) }, true},
		{"a control plane", func() { i.signal(1, syscall.SIGKILL) }, false},
	} {
		for _, phase := range []string{"open", "use", "close"} {
			var id string
			var err error
			if phase != "open" {
				c.until("a session to "+phase, nil, func() error {
					id, err = open(second)
					return err
				})
			}
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				if phase == "open" {
					time.Sleep(300 * time.Millisecond) // by then the claim is made, and its pod is not there yet
				}
				part.kill()
			}()
			what := "it has worked"
			switch phase {
			case "open":
				id, err = open(second)
			case "use":
				for done := false; !done && err == nil; {
					err = note("a use", use(id))
					select {
					case <-killed:
						done = true
					default:
					}
				}
			case "close":
				err = note("a close", second.Close(within(30*time.Second), id, true))
			}
			if err != nil {
				what = problem.CodeOf(err)
			}
			<-killed
			if phase == "use" && part.survives {
				c.until("the session goes on after "+part.name+" was killed", nil, func() error { return use(id) })
			}
			if id != "" {
				c.until("the session has ended", nil, func() error {
					err := second.Close(within(30*time.Second), id, true)
					if code := problem.CodeOf(err); code == problem.NotFound || code == problem.NodeLost {
						return nil
					}
					return err
				})
			}
			t.Logf("%s is killed during %s: %s; a session works again after %s", part.name, phase, what, works(part.name+" and "+phase).Round(100*time.Millisecond))
		}
	}
	t.Logf("%d grants; these did not work: %v", grants, failed)

	// A control plane of which nothing is heard is lost, and its accounts are free.
	id, err := open(second)
	c.must(err)
	i.signal(1, syscall.SIGSTOP)
	silent := time.Now()
	c.until("that it is lost", nil, func() error {
		_, err := first.Get(within(5*time.Second), id)
		if problem.CodeOf(err) != problem.NodeLost {
			return fmt.Errorf("the session is there: %v", err)
		}
		return nil
	})
	lost := time.Since(silent)
	c.until("that the account is free", nil, func() error {
		id, err := open(first)
		if err == nil {
			err = first.Close(within(30*time.Second), id, true)
		}
		return err
	})
	t.Logf("a session is node_lost %s after its control plane stands still, and its account is free after %s", lost.Round(100*time.Millisecond), time.Since(silent).Round(100*time.Millisecond))
	if lost > 10*time.Second {
		t.Errorf("that is more than 10 s")
	}
	i.signal(1, syscall.SIGCONT)
	works("the control plane went on")

	// What is on record is whole, and no grant was used twice.
	report, err := client.Call(within(time.Minute), first, op.VerifyAudit(), op.None{})
	c.must(err)
	if !report.OK() || len(report.Nodes) != 2 {
		t.Errorf("the record is %+v", report)
	}
	out, err := i.try(0, "audit", "ls", "--action", "session.inject", "--limit", "1000", "--json")
	c.must(err)
	var rows []op.AuditRow
	c.must(json.Unmarshal([]byte(out), &rows))
	used := map[string]int{}
	for _, r := range rows {
		var detail struct {
			Grant string `json:"grant_id"`
		}
		c.must(json.Unmarshal(r.Detail, &detail))
		if r.Phase == "outcome" && r.Result == "ok" {
			used[detail.Grant]++
		}
	}
	for id, n := range used {
		if n > 1 || id == "" {
			t.Errorf("the grant %s was used %d times", id, n)
		}
	}
	if len(used) < 10 {
		t.Errorf("on record are %d uses: that says nothing", len(used))
	}

	// Nothing is left. What belongs to nobody goes by itself.
	began := time.Now()
	c.until("that nothing is left", nil, func() error {
		all, err := first.List(within(10*time.Second), false)
		if err != nil || len(all) > 0 {
			return fmt.Errorf("there are the sessions %v, %v", all, err)
		}
		left := strings.Fields(c.kubectl("", "-n", i.namespace+"-jails", "get", "sandboxclaims,sandboxes,pods", "-o", "name"))
		if left = slices.DeleteFunc(left, func(s string) bool { return s == "" }); len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
	t.Logf("nothing is left after %s", time.Since(began).Round(100*time.Millisecond))
}

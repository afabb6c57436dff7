//go:build k8s

package k8s

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"github.com/prometheus/procfs"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/test/k8s/smallbrowser"
	"github.com/clawjail/clawjail/test/testkit"
)

var hollowSessions = flag.Int("hollow", 300, "how many sessions TestManySessionsOnHollowNodes opens")

// hollowSubnet has the addresses of pods of hollow nodes, all of which are this machine's.
const hollowSubnet = "10.64.0.0/16"

// hollows are the pods of a namespace that have an address and are on nodes where nothing runs. Each is a connection of this process: what it says of
// its confinement is what was declared, and its browser is a small one.
type hollows struct {
	*cluster
	namespace string

	mu    sync.Mutex
	known map[string]context.CancelFunc // by the UID of the pod
	all   sync.WaitGroup
	lost  atomic.Int64 // pods that ended in another way than they were asked to
}

// hollow has the cluster place pods on some nodes on which they are no processes, until the test ends.
func (c *cluster) hollow(nodes int) {
	c.t.Helper()
	argv := []string{"kwok", "--kubeconfig", c.dir + "/kubeconfig", "--manage-all-nodes=false", "--manage-nodes-with-label-selector", "type=hollow", "--node-lease-duration-seconds", "40", "--node-ip", nodeAddress}
	stages, err := filepath.Glob(c.parts + "/stages/*.yaml")
	c.must(err)
	for _, stage := range stages {
		argv = append(argv, "--config", stage)
	}
	c.must(exec.Command("ip", "route", "add", "local", hollowSubnet, "dev", "lo").Run())
	kwok := c.start("kwok", argv...)
	for n := range nodes {
		c.kubectl(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "hollow-%d", "labels": {"type": "hollow"}}, "spec": {"podCIDR": "10.64.%d.0/20"}}`, n, 16*n), "apply", "-f", "-")
	}
	c.kubectl("", "cordon", "one")
	c.t.Cleanup(func() {
		c.kubectl("", "uncordon", "one")
		c.kubectl("", "delete", "nodes", "-l", "type=hollow")
		c.must(kwok.cmd.Process.Kill())
		<-kwok.end
		c.must(exec.Command("ip", "route", "del", "local", hollowSubnet, "dev", "lo").Run())
	})
	c.kubectl("", "wait", "--for=condition=Ready", "--timeout=60s", "nodes", "-l", "type=hollow")
}

// furnishHollow makes a namespace whose pods are hollow, until the test ends.
func (c *cluster) furnishHollow(namespace string) *hollows {
	c.t.Helper()
	c.furnish(namespace)
	h := &hollows{cluster: c, namespace: namespace, known: map[string]context.CancelFunc{}}
	ctx, stop := context.WithCancel(context.Background())
	h.all.Go(func() {
		for ctx.Err() == nil {
			if err := h.watch(ctx); !errors.Is(err, io.EOF) && ctx.Err() == nil { // the API server ends it now and then
				c.t.Logf("watch the pods: %v", err)
			}
		}
	})
	c.t.Cleanup(func() {
		stop()
		h.all.Wait()
	})
	return h
}

type hollowPod struct {
	Metadata struct{ Name, UID, DeletionTimestamp string }
	Spec     struct {
		Containers []struct{ Command []string }
	}
	Status struct{ Phase, PodIP string }
}

// watch makes each pod that is there, or comes, a connection.
func (h *hollows) watch(ctx context.Context) error {
	answer, err := h.ask(ctx, http.MethodGet, "/api/v1/namespaces/"+h.namespace+"/pods?watch=1", "")
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	for events := json.NewDecoder(answer.Body); ; {
		var event struct {
			Type   string
			Object hollowPod
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		p := event.Object
		h.mu.Lock()
		end, is := h.known[p.Metadata.UID]
		switch {
		case is && (event.Type == "DELETED" || p.Metadata.DeletionTimestamp != ""):
			end()
			delete(h.known, p.Metadata.UID)
		case !is && p.Status.PodIP != "" && p.Status.Phase == "Running" && p.Metadata.DeletionTimestamp == "":
			life, end := context.WithCancel(ctx)
			h.known[p.Metadata.UID] = end
			h.all.Go(func() {
				if err := h.live(life, p); err != nil && life.Err() == nil {
					h.lost.Add(1)
					h.t.Logf("%s: %v", p.Metadata.Name, err)
				}
			})
		}
		h.mu.Unlock()
	}
}

// live is a pod, from its connection to its end.
func (h *hollows) live(ctx context.Context, p hollowPod) error {
	options := flag.NewFlagSet("clawjail-shim", flag.ContinueOnError)
	gateway, pin := options.String("gateway", "", ""), options.String("pin", "", "")
	options.String("token", "", "")
	if err := options.Parse(p.Spec.Containers[0].Command[1:]); err != nil {
		return err
	}
	answer, err := h.ask(ctx, http.MethodPost, "/api/v1/namespaces/"+h.namespace+"/serviceaccounts/default/token",
		fmt.Sprintf(`{"spec": {"audiences": [%q], "expirationSeconds": 3600, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": %q, "uid": %q}}}`, kubernetes.Audience, p.Metadata.Name, p.Metadata.UID))
	if err != nil {
		return err
	}
	var token struct{ Status struct{ Token string } }
	err = errors.Join(json.NewDecoder(answer.Body).Decode(&token), answer.Body.Close())
	if err != nil {
		return err
	}
	address, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		return err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)), Timeout: time.Minute}, Config: shim.ClientTLS(*pin)}
	conn, err := dialer.DialContext(ctx, "tcp", *gateway)
	if err != nil {
		return err
	}
	stream := link.New(time.Minute)
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	arrived, err := stream.Take(conn)
	if err != nil {
		return err
	}
	var welcome shim.Welcome
	err = errors.Join(shim.WriteMessage(conn, shim.Hello{Version: shim.Version, Token: token.Status.Token, Arrived: arrived}), shim.ReadMessage(conn, &welcome))
	if err == nil {
		err = welcome.Refused.Err()
	}
	if err != nil {
		stream.Leave(conn)
		return errors.Join(err, stream.Close())
	}
	session, err := yamux.Server(stream, shim.Session(256), nil)
	if err != nil {
		stream.Leave(conn)
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		stdio := map[uint32]*yamux.Stream{}
		for {
			st, err := session.AcceptStream()
			if err != nil {
				_ = stream.Close()
				return
			}
			var r shim.Request
			if err := shim.ReadMessage(st, &r); err != nil {
				_ = st.Reset()
				continue
			}
			switch r.Do {
			case shim.DoStdio:
				stdio[st.StreamID()] = st
			case shim.DoRun:
				in, out, errs := stdio[r.Run.Stdio[0]], stdio[r.Run.Stdio[1]], stdio[r.Run.Stdio[2]]
				go run(st, in, out, errs)
			default:
				var reply shim.Reply
				if r.Do == shim.DoPrepare {
					reply.Report = asDeclared(r.Prepare.Profile, address)
				}
				_ = shim.WriteMessage(st, reply) // who does not wait for it does not need it
				go func() {
					_, _ = io.Copy(io.Discard, st)
					_ = st.Close()
				}()
			}
		}
	}()
	err = stream.Carry(conn, welcome.Arrived)
	_ = session.Close()
	<-done
	if stream.Err() != nil { // the other side has ended it
		return nil
	}
	return err
}

// run is a program, which is a browser.
func run(st, in, out, errs *yamux.Stream) {
	defer func() { _ = st.Close() }()
	if err := shim.WriteMessage(st, shim.Reply{PID: 2}); err != nil {
		return
	}
	err := smallbrowser.Answer(in, out)
	exit := &jail.Exit{Cause: jail.CauseExited, At: time.Now().UTC()}
	if err != nil {
		exit.Code = 1
	}
	_ = errors.Join(out.Close(), errs.Close(), shim.WriteMessage(st, shim.Reply{Exit: exit})) // who does not wait for it does not need it
	_, _ = io.Copy(io.Discard, st)
	_ = in.Reset()
}

// asDeclared is what a pod says that is confined as it should be.
func asDeclared(p jail.Profile, address netip.Addr) *shim.Report {
	o := jail.Observed{UIDs: []uint32{p.Host}, GIDs: []uint32{p.Host}, InsideUID: p.UID, InsideGID: p.GID, NoNewPrivileges: true, SeccompFilter: true, AppArmor: p.AppArmor, ReadOnlyRoot: true,
		Tmpfs: p.Tmpfs, Binds: p.Binds, Memory: p.Limits.Memory, MilliCPU: p.Limits.MilliCPU, Tasks: p.Limits.Tasks, Files: int(p.Limits.Files)}
	return &shim.Report{Observed: o, Host: p.Host, Addresses: []netip.Addr{address}}
}

// crowd is many sessions of some control planes, whose jails are in a namespace.
type crowd struct {
	*cluster
	planes    []*testkit.Installation
	namespace string
	callers   int
}

// plane is the control plane of a session.
func (c crowd) plane(session int) *client.Client { return c.planes[session%len(c.planes)].API }

// usage is what the processes of a part have used.
type usage struct{ resident, processor float64 } // MiB, seconds

// used are the parts of the cluster and of clawjail, and this process, in which hollow pods are.
func (c crowd) used() map[string]usage {
	c.t.Helper()
	pids := map[string][]int{"the test": {os.Getpid()}}
	for n, v := range c.planes {
		pids[fmt.Sprintf("clawjail serve %d", n)], pids[fmt.Sprintf("clawjail hostd %d", n)] = v.Victims("serve"), v.Victims("hostd")
	}
	for name, p := range c.all() {
		select {
		case <-p.end: // with a test of before
		default:
			pids[name] = []int{p.cmd.Process.Pid}
		}
	}
	out := map[string]usage{}
	for name, all := range pids {
		var u usage
		for _, pid := range all {
			p, err := procfs.NewProc(pid)
			c.must(err)
			s, err := p.Stat()
			c.must(err)
			u.resident += float64(s.ResidentMemory()) / (1 << 20)
			u.processor += s.CPUTime()
		}
		out[name] = u
	}
	return out
}

// asked says what control planes have asked the API server for since a request, by kind, for each of some sessions, and how often
// without looking at what takes long.
func (c crowd) asked(since, sessions int) (times float64, kinds string) {
	c.t.Helper()
	all, counts := c.record()[since:], map[string]int{}
	for _, r := range all {
		counts[r.what()]++
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		if n := float64(counts[kind]) / float64(sessions); n >= 0.05 {
			kinds += fmt.Sprintf(", %.1f %s", n, kind)
		}
	}
	// The Sandbox of a pod is asked for once to know whose the pod is.
	looks := counts["get  pods"] + max(0, counts["get agents.x-k8s.io sandboxes"]-sessions)
	return float64(len(all)-looks) / float64(sessions), strings.TrimPrefix(kinds, ", ")
}

// each has the callers do something so many times, and says how long that took.
func (c crowd) each(what string, n int, do func(n int) error) {
	c.t.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	took := make(sample, n)
	began := time.Now()
	for range min(n, c.callers) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !c.t.Failed(); i = int(next.Add(1)) - 1 {
				start := time.Now()
				if err := do(i); err != nil {
					c.t.Errorf("%s number %d: %v", what, i, err)
				}
				took[i] = float64(time.Since(start).Microseconds()) / 1000
			}
		})
	}
	all.Wait()
	whole := time.Since(began)
	if c.t.Failed() {
		c.t.FailNow()
	}
	c.t.Logf("%-6s %d in %s, %.1f a second, each %s", what, n, whole.Round(100*time.Millisecond), float64(n)/whole.Seconds(), took)
}

// live opens so many sessions, lists them, uses a thousand of them at most, and closes all. It says what that takes, and how often each asks the API server.
func (c crowd) live(count int) (asked float64) {
	c.t.Helper()
	t, before, requests := c.t, c.used(), len(c.record())
	ids := make([]string, count)
	c.each("open", count, func(n int) error {
		s, err := c.plane(n).Open(t.Context(), session.OpenRequest{})
		ids[n] = s.ID
		return err
	})
	after := c.used()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		a, b, of := after[name], before[name], float64(count)
		if strings.HasPrefix(name, "clawjail") {
			of /= float64(len(c.planes))
		}
		t.Logf("%-26s has %4.0f MiB, %4.0f KiB for a session; opening one takes %.1f ms of a processor", name, a.resident, (a.resident-b.resident)*1024/of, (a.processor-b.processor)*1000/of)
	}
	opening, kinds := c.asked(requests, count)
	t.Logf("opening one is %.1f requests, without looking at what takes long: %s", opening, kinds)
	requests = len(c.record())
	c.each("list", 3, func(n int) error {
		listed, err := c.plane(n).List(t.Context(), false)
		if err == nil && len(listed) != count {
			err = fmt.Errorf("%d sessions are listed", len(listed))
		}
		return err
	})
	c.each("use", min(count, 1000), func(n int) error {
		_, err := c.plane(n+1).Drive(t.Context(), ids[n], browser.Tabs{}) // by way of another one, if there is one
		return err
	})
	c.each("close", count, func(n int) error { return c.plane(n).Close(t.Context(), ids[n], true) })
	c.until("that nothing is left", []string{"agent-sandbox-controller"}, func() error {
		if left := strings.Count(c.kubectl("", "-n", c.namespace, "get", "sandboxclaims,pods", "-o", "name"), "\n"); left > 0 {
			return fmt.Errorf("there are %d", left)
		}
		return nil
	})
	closing, kinds := c.asked(requests, count)
	t.Logf("closing one is %.1f requests, without looking at what takes long: %s", closing, kinds)
	report, err := client.Call(t.Context(), c.plane(0), op.VerifyAudit(), op.None{})
	c.must(err)
	records := int64(0)
	for _, n := range report.Nodes {
		records += n.Rows
	}
	t.Logf("%.1f records are of each", float64(records)/float64(count))
	if bad := report.Bad(); bad != nil {
		t.Errorf("the audit log does not verify: %+v", bad)
	}
	return opening + closing
}

// crowded are control planes with room for so many sessions together, whose browsers are small.
func (c *cluster) crowded(t *testing.T, namespace string, sessions, callers int) crowd {
	t.Helper()
	// A session is four open files of the host daemon, and the machine may allow it no more than some ten thousand.
	const limit = 4000
	out := crowd{c, nil, namespace, callers}
	database := testkit.OnPostgreSQL(t)
	kubernetes := strings.Replace(c.settings(namespace), "images: {", `images: {browser: "clawjail.test/small:1"`, 1)
	for n := range (sessions + limit - 1) / limit {
		v := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool + database + settingsOf(t, n, kubernetes) + fmt.Sprintf("gateway: {port: %d}\nsessions: {max: %d, ttl: 4h, idle: 4h}\nlimits: {memory: 256MiB, tmp: 32MiB, shm: 32MiB}\n", proxyPort(n), limit)})
		v.Up()
		if n > 0 {
			v.Join(out.planes[0])
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s", v.Log())
			}
		})
		out.planes = append(out.planes, v)
	}
	return out
}

// Many sessions are opened, listed, used and closed, on nodes that run nothing: what limits them is the control plane, and what the cluster does for each.
func TestManySessionsOnHollowNodes(t *testing.T) {
	c := theCluster(t)
	c.hollow(4)
	h := c.furnishHollow("hollow")
	if asked := c.crowded(t, "hollow", *hollowSessions, 32).live(*hollowSessions); asked > 6 {
		t.Errorf("each asks the API server %.1f times", asked)
	}
	if lost := h.lost.Load(); lost > 0 {
		t.Errorf("%d pods were lost", lost)
	}
}

// A hundred sessions are opened at once, and their pods are real. Each asks the API server for little more than one does.
func TestAHundredSessionsAtOnce(t *testing.T) {
	const count = 100
	c := theCluster(t)
	c.furnish("many")
	c.enforce(podPort(0), proxyPort(0))
	if asked := c.crowded(t, "many", count, count).live(count); asked > 20 {
		t.Errorf("each asks the API server %.1f times", asked)
	}
}

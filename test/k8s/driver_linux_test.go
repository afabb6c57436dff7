//go:build k8s

package k8s

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// furnish makes a namespace for jails, and the account of a control plane with the rights that it needs there and no others, as the chart does.
func (c *cluster) furnish(namespace string) {
	c.t.Helper()
	c.kubectl(c.mustHelm("template", namespace, c.chart(), "--namespace", "default", "--show-only", "templates/jails.yaml", "--set", "jails.namespace="+namespace,
		"--set", "serviceAccount.name=clawjail", "--set", "image.repository=none", "--set", "image.tag=none", "--set", "config.kubernetes.images.browser=none"), "apply", "-f", "-")
}

// account is the file of a token of that account.
func (c *cluster) account() string {
	c.t.Helper()
	c.kubectl(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"clawjail","namespace":"default"}}`, "apply", "-f", "-")
	return c.write("clawjail.token", strings.TrimSpace(c.kubectl("", "-n", "default", "create", "token", "clawjail", "--duration", "1h")))
}

// gatewayKey is what pods know the control plane by.
var gatewayKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// api is the API server, as the driver asks it.
func (c *cluster) api() *kubernetes.API {
	c.t.Helper()
	api, err := kubernetes.NewAPI(kubernetes.Access{Server: apiAddress, Authority: c.dir + "/pki/apiserver.crt", Token: c.account()})
	c.must(err)
	return api
}

// kept are the tests whose namespace is for another one.
var kept = map[string]bool{}

// newDriver makes one with a namespace of its own.
func newDriver(t *testing.T, c *cluster, namespace string, change func(*kubernetes.Options)) *kubernetes.Driver {
	t.Helper()
	c.furnish(namespace)
	api := c.api()
	l, err := net.Listen("tcp", nodeAddress+":0")
	c.must(err)
	log := &testenv.Buffer{}
	o := kubernetes.Options{
		API: api, Installation: "test", Node: "one", Namespace: namespace, Images: map[string]string{"busybox": "clawjail.test/shim:1"}, Account: "default",
		Gateway: l.Addr().String(), Key: gatewayKey, Seccomp: "clawjail.json", Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	if change != nil {
		change(&o)
	}
	d, err := kubernetes.New(t.Context(), o)
	c.must(err)
	served, ran := make(chan struct{}), make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		d.Serve(l)
		close(served)
	}()
	go func() {
		d.Run(ctx)
		close(ran)
	}()
	t.Cleanup(func() {
		stop()
		<-ran
		_ = l.Close()
		d.Close()
		api.Close()
		<-served
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "jail made") {
				t.Log(strings.TrimSpace(line))
			}
		}
		if t.Failed() {
			t.Logf("the driver:\n%s", log)
			t.Logf("%s", c.kubectl("", "-n", namespace, "get", "events"))
		}
		if !kept[t.Name()] {
			c.kubectl("", "delete", "namespace", namespace, "--wait=false")
		}
	})
	return d
}

// things are what there is in a namespace of jails.
func resources(c *cluster, namespace string) func(context.Context) ([]jail.HostResource, error) {
	return func(context.Context) (out []jail.HostResource, err error) {
		for _, path := range []string{"/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/" + namespace + "/sandboxclaims", "/apis/agents.x-k8s.io/v1beta1/namespaces/" + namespace + "/sandboxes", "/api/v1/namespaces/" + namespace + "/pods"} {
			text, err := c.get(path)
			if err != nil {
				return nil, err
			}
			var list struct {
				Items []struct {
					Metadata struct{ Name string }
				}
			}
			if err := json.Unmarshal(text, &list); err != nil {
				return nil, err
			}
			for _, one := range list.Items {
				out = append(out, jail.HostResource{Kind: jail.ResourceRecord, Index: -1, ID: path + "/" + one.Metadata.Name})
			}
		}
		return out, nil
	}
}

// TestConformance tries the promises of every driver.
func TestConformance(t *testing.T) {
	c := theCluster(t)
	n := 0
	jailtest.Run(t, func(t *testing.T) jailtest.Subject {
		n++
		namespace := fmt.Sprintf("conformance-%d", n)
		return jailtest.Subject{Driver: newDriver(t, c, namespace, nil), Template: "busybox", Resources: resources(c, namespace), Missing: "btest99999", Confines: true, OneUser: true}
	})
}

// In a cluster whose network enforces nothing no program is started.
func TestANetworkThatEnforcesNothingIsRefused(t *testing.T) {
	c := theCluster(t)
	d := newDriver(t, c, "unenforced", func(o *kubernetes.Options) {
		o.Probes = []shim.Probe{{Name: "API server", Network: "tcp", Address: netip.MustParseAddrPort(nodeAddress + ":6443")}}
	})
	s := jailtest.Subject{Driver: d, Template: "busybox"}
	_, err := d.Create(t.Context(), s.Spec("exec cat"))
	if p := new(problem.Error); !errors.As(err, &p) || p.Code != problem.NetworkNotEnforced || !strings.Contains(p.Message, "API server") {
		t.Errorf("it is %v", err)
	}
	if left, err := resources(c, "unenforced")(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
}

// In a cluster whose network enforces policies those of the namespace of jails hold, and are all that is needed.
func TestANetworkThatEnforcesPoliciesIsTaken(t *testing.T) {
	c := theCluster(t)
	elsewhere, err := net.Listen("tcp", nodeAddress+":0")
	c.must(err)
	defer func() { c.must(elsewhere.Close()) }()
	probes := []shim.Probe{{Name: "API server", Network: "tcp", Address: netip.MustParseAddrPort(nodeAddress + ":6443")}, {Name: "node", Network: "tcp", Address: netip.MustParseAddrPort(elsewhere.Addr().String())}}
	var port string
	d := newDriver(t, c, "enforced", func(o *kubernetes.Options) {
		o.Probes = probes
		_, port, _ = strings.Cut(o.Gateway, ":")
	})
	// The control plane of this test is a process of the node, and no pod.
	c.kubectl(fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"gateway","namespace":"enforced"},"spec":{"podSelector":{},"policyTypes":["Egress"],
		"egress":[{"to":[{"ipBlock":{"cidr":"%s/32"}}],"ports":[{"protocol":"TCP","port":%s}]}]}}`, nodeAddress, port), "apply", "-f", "-")
	c.route()
	s := jailtest.Subject{Driver: d, Template: "busybox"}
	j := jailtest.Start(t, s, s.Spec("exec cat"))
	out := bufio.NewReader(j.Stdio.Out)
	echo(t, j, out, "hello")
	// A second pod is not reached by the first.
	other := jailtest.Start(t, s, s.Spec("exec busybox nc -l -p 8080"))
	reach := func(address string) (int, error) {
		host, port, _ := strings.Cut(address, ":")
		x, err := d.Exec(t.Context(), j.Name, jail.Program{Argv: []string{"/bin/busybox", "nc", "-w", "2", host, port}, Wire: jail.WireStdio}, [3]*os.File{})
		if err != nil {
			return 0, err
		}
		exit, err := x.Wait(t.Context())
		return exit.Code, errors.Join(err, x.End(t.Context()))
	}
	for name, address := range map[string]string{"the API server": nodeAddress + ":6443", "another port of the node": elsewhere.Addr().String(), "another jail": other.Lease.Addr.String() + ":8080"} {
		if code, err := reach(address); err != nil || code == 0 {
			t.Errorf("a jail reaches %s: %d, %v", name, code, err)
		}
	}
	if code, err := reach(nodeAddress + ":" + port); err != nil || code != 0 {
		t.Errorf("a jail does not reach the gateway, as a control: %d, %v", code, err)
	}
}

// echo has a jail's program repeat a line.
func echo(t *testing.T, j *jail.Jail, out *bufio.Reader, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(j.Stdio.In, line); err != nil {
		t.Fatal(err)
	}
	if got, err := out.ReadString('\n'); got != line+"\n" || err != nil {
		t.Fatalf("it answers %q, %v", got, err)
	}
}

// What a control plane has left that is gone the next one of its name removes, and nothing of others.
func TestWhatAControlPlaneLeavesIsReapedByTheNext(t *testing.T) {
	c := theCluster(t)
	s := jailtest.Subject{Template: "busybox"}
	t.Run("before", func(t *testing.T) {
		first := newDriver(t, c, "reaped", nil)
		j, err := first.Create(t.Context(), s.Spec("exec cat"))
		c.must(err)
		echo(t, j, bufio.NewReader(j.Stdio.Out), "hello")
		c.kubectl(fmt.Sprintf(`{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxClaim","metadata":{"name":"of-another","namespace":"reaped","labels":{"clawjail.io/installation":"test","clawjail.io/node":"two"}},"spec":{"warmPoolRef":{"name":%q}}}`,
			strings.TrimSpace(c.kubectl("", "-n", "reaped", "get", "sandboxwarmpools", "-o", "jsonpath={.items[0].metadata.name}"))), "apply", "-f", "-")
		kept[t.Name()] = true
	})
	c.t = t
	second := newDriver(t, c, "reaped", nil)
	c.until("that only the claim of another one is left", []string{"agent-sandbox-controller", "kube-controller-manager"}, func() error {
		if _, err := second.Reap(t.Context(), jail.ReapOptions{}); err != nil {
			return err
		}
		left := c.kubectl("", "-n", "reaped", "get", "sandboxclaims,sandboxes,pods", "-o", "name")
		if strings.Contains(left, "btest") || !strings.Contains(left, "of-another") {
			return errors.New(left)
		}
		return nil
	})
	// A jail that cannot have its name, because the claim of another one has it, takes nothing from that one.
	j := jailtest.Start(t, jailtest.Subject{Driver: second}, s.Spec("exec cat"))
	var n int
	if _, err := fmt.Sscanf(string(j.Name), "btest%05d", &n); err != nil {
		t.Fatal(err)
	}
	next := fmt.Sprintf("btest%05d", (n+1)%100_000)
	c.kubectl(fmt.Sprintf(`{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxClaim","metadata":{"name":%q,"namespace":"reaped","labels":{"clawjail.io/installation":"test","clawjail.io/node":"two"}},"spec":{"warmPoolRef":{"name":"none"}}}`, next), "apply", "-f", "-")
	if _, err := second.Create(t.Context(), s.Spec("exec cat")); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a jail whose name is taken: %v", err)
	}
	if left := c.kubectl("", "-n", "reaped", "get", "sandboxclaims", "-o", "jsonpath={range .items[*]}{.metadata.name}={.metadata.deletionTimestamp} {end}"); !strings.Contains(left, next+"= ") {
		t.Errorf("the claims are %s", left)
	}
}

// Several control planes have one namespace. What one of them has made goes when it is gone, whoever looks, and nothing of those that are there.
func TestWhatAControlPlaneHasMadeGoesWithIt(t *testing.T) {
	c := theCluster(t)
	absent := func(node string) func(*kubernetes.Options) {
		return func(o *kubernetes.Options) {
			o.Node, o.Absence, o.Warm, o.PoolIdle = node, 6*time.Second, 1, 8*time.Second
		}
	}
	var options kubernetes.Options
	first := newDriver(t, c, "several", func(o *kubernetes.Options) {
		absent("first")(o)
		options = *o
	})
	s := jailtest.Subject{Driver: first, Template: "busybox"}
	j := jailtest.Start(t, s, s.Spec("exec cat"))
	out := bufio.NewReader(j.Stdio.Out)
	echo(t, j, out, "hello")
	of := func(node string) string {
		return c.kubectl("", "-n", "several", "get", "sandboxclaims,sandboxwarmpools,sandboxtemplates", "-l", "clawjail.io/node="+node, "-o", "name")
	}
	t.Run("another", func(t *testing.T) {
		second := newDriver(t, c, "several", absent("second"))
		next, err := second.Create(t.Context(), s.Spec("exec cat"))
		c.must(err)
		reader := bufio.NewReader(next.Stdio.Out)
		began := time.Now()
		for time.Since(began) < 15*time.Second { // longer than it may be absent
			echo(t, next, reader, "there")
			time.Sleep(time.Second)
		}
		if made := of("second"); strings.Count(made, "\n") != 3 {
			t.Errorf("it has made %q", made)
		}
		kept[t.Name()] = true
	})
	c.t = t
	began := time.Now()
	c.until("that nothing of the other one is left", []string{"agent-sandbox-controller", "kube-controller-manager"}, func() error {
		left := of("second")
		if pods := c.kubectl("", "-n", "several", "get", "pods", "-o", "name"); strings.Count(pods, "\n") > 2 { // a jail, and one that waits
			left += pods
		}
		if left != "" {
			return errors.New(left)
		}
		return nil
	})
	t.Logf("what it had made was gone after %s", time.Since(began).Round(100*time.Millisecond))
	echo(t, j, out, "still there")
	if made := of("first"); strings.Count(made, "\n") != 3 {
		t.Errorf("of the first one there is %q", made)
	}

	// Pods wait for as long as somebody wants them.
	c.must(first.Destroy(t.Context(), j.Name))
	c.until("that no pod waits", []string{"agent-sandbox-controller"}, func() error {
		if left := of("first") + c.kubectl("", "-n", "several", "get", "pods", "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
	again := jailtest.Start(t, s, s.Spec("exec cat"))
	echo(t, again, bufio.NewReader(again.Stdio.Out), "wanted again")

	// Somebody has deleted what it had made, and it makes it anew.
	c.kubectl("", "-n", "several", "delete", "lease", "clawjail-first")
	c.until("another lease", nil, func() error {
		if c.kubectl("", "-n", "several", "get", "lease", "clawjail-first", "--ignore-not-found", "-o", "name") == "" {
			return errors.New("there is none")
		}
		return nil
	})
	c.until("another jail", nil, func() error {
		next, err := first.Create(t.Context(), s.Spec("exec cat"))
		if err == nil {
			echo(t, next, bufio.NewReader(next.Stdio.Out), "anew")
			c.must(first.Destroy(t.Context(), next.Name))
		}
		return err
	})
	// One that only looks, as clawjail reap does where no host daemon runs, takes nothing away.
	idle, err := kubernetes.New(t.Context(), options)
	c.must(err)
	_, err = idle.Reap(t.Context(), jail.ReapOptions{DryRun: true})
	c.must(errors.Join(err, idle.Leave(t.Context())))
	idle.Close()
	if made := of("first"); !strings.Contains(made, "sandboxwarmpool") || c.kubectl("", "-n", "several", "get", "lease", "clawjail-first", "-o", "name") == "" {
		t.Errorf("of the first one there is %q", made)
	}
	c.must(first.Leave(t.Context()))
	c.until("that nothing is left", []string{"kube-controller-manager"}, func() error {
		if left := of("first"); left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// The parts of the cluster are killed while a jail is used.
func TestAJailOutlivesThePartsOfTheCluster(t *testing.T) {
	c := theCluster(t)
	d := newDriver(t, c, "faults", nil)
	s := jailtest.Subject{Driver: d, Template: "busybox", Resources: resources(c, "faults")}
	j := jailtest.Start(t, s, s.Spec("exec cat"))
	out := bufio.NewReader(j.Stdio.Out)
	echo(t, j, out, "before")
	for _, part := range []string{"kube-apiserver", "etcd", "agent-sandbox-controller", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet"} {
		c.restart(part)
		echo(t, j, out, "after "+part)
	}
	c.until("the API server", []string{"kube-apiserver"}, func() error {
		_, err := c.get("/readyz")
		return err
	})
	// Others are made as before.
	next := jailtest.Start(t, s, s.Spec("exec cat"))
	echo(t, next, bufio.NewReader(next.Stdio.Out), "another")
	if r, err := d.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) > 0 || r.Jails != 2 {
		t.Errorf("reaped %+v, %v", r, err)
	}
}

// Programs run beside the jail's own, and its ports are reached.
func TestProgramsAndPortsOfAJailAreReached(t *testing.T) {
	c := theCluster(t)
	d := newDriver(t, c, "beside", nil)
	s := jailtest.Subject{Driver: d, Template: "busybox"}
	j := jailtest.Start(t, s, s.Spec(`exec busybox nc -l -p 8080`))
	in, theirs, err := os.Pipe()
	c.must(err)
	out, says, err := os.Pipe()
	c.must(err)
	x, err := d.Exec(t.Context(), j.Name, jail.Program{Argv: []string{"/bin/sh", "-c", `read line; echo "$line, and $A"; exit 3`}, Env: map[string]string{"A": "more"}, Wire: jail.WireStdio}, [3]*os.File{in, says, nil})
	c.must(err)
	c.must(errors.Join(in.Close(), says.Close()))
	_, err = theirs.WriteString("a line\n")
	c.must(err)
	text, err := io.ReadAll(out)
	if exit, waited := x.Wait(t.Context()); err != nil || waited != nil || string(text) != "a line, and more\n" || exit.Code != 3 {
		t.Errorf("it says %q and ends with %+v, %v, %v", text, exit, err, waited)
	}
	c.must(x.End(t.Context()))
	c.must(errors.Join(theirs.Close(), out.Close()))

	conn, err := d.Dial(t.Context(), j.Name, 8080)
	c.must(err)
	_, err = conn.WriteString("hello\n")
	_, err2 := j.Stdio.In.WriteString("heard\n")
	c.must(errors.Join(err, err2))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "heard\n" {
		t.Errorf("%q, %v", line, err)
	}
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	c.must(errors.Join(conn.Close(), j.Stdio.In.Close()))
	if exit, err := d.Wait(t.Context(), j.Name); err != nil || exit.Code != 0 {
		t.Errorf("it ended with %+v, %v", exit, err)
	}
	conflict := func(what string, err error) {
		t.Helper()
		if p := new(problem.Error); !errors.As(err, &p) || p.Code != problem.Conflict {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = d.Dial(t.Context(), j.Name, 8080)
	conflict("a port of a jail that has ended", err)
	_, err = d.Exec(t.Context(), j.Name, jail.Program{Argv: []string{"/bin/sh"}, Wire: jail.WireStdio}, [3]*os.File{})
	conflict("a program in a jail that has ended", err)
}

// Who waits for a pod is told why it does not come, and nothing of it stays.
func TestAPodThatDoesNotComeHasAReason(t *testing.T) {
	c := theCluster(t)
	for name, one := range map[string]struct {
		change func(*kubernetes.Options)
		memory int64
		quota  bool
		code   string
		says   string
	}{
		"image":   {change: func(o *kubernetes.Options) { o.Images = map[string]string{"busybox": "127.0.0.1:1/nothing:1"} }, code: problem.TemplateMissing, says: "127.0.0.1:1/nothing:1"},
		"profile": {change: func(o *kubernetes.Options) { o.Seccomp = "nothing.json" }, code: problem.RuntimeMissing, says: "nothing.json"},
		"sandbox": {change: func(o *kubernetes.Options) { o.Seccomp = "" }, code: problem.JailUnconfined, says: "a browser cannot have its own sandbox"},
		"class":   {change: func(o *kubernetes.Options) { o.RuntimeClass = "nothing" }, code: problem.PoolExhausted, says: "nothing"},
		"memory":  {memory: 1 << 40, code: problem.PoolExhausted, says: "Insufficient memory"},
		"quota":   {quota: true, code: problem.PoolExhausted, says: "exceeded quota"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := "stuck-" + name
			d := newDriver(t, c, namespace, one.change)
			if one.quota {
				c.kubectl("", "-n", namespace, "create", "quota", "none", "--hard", "pods=0")
			}
			s := jailtest.Subject{Driver: d, Template: "busybox"}
			spec := s.Spec("exec cat")
			if one.memory > 0 {
				spec.Limits.Memory = one.memory
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := time.Now()
			_, err := d.Create(ctx, spec)
			t.Logf("after %s: %v", time.Since(began).Round(100*time.Millisecond), err)
			if p := new(problem.Error); !errors.As(err, &p) || p.Code != one.code || !strings.Contains(err.Error(), one.says) || p.Hint == "" {
				t.Errorf("it is %v", err)
			}
			if left, err := resources(c, namespace)(t.Context()); err != nil || len(left) > 0 {
				t.Errorf("%v are left, %v", left, err)
			}
		})
	}
}

// A jail asks little of the API server, from its claim to its end.
func TestAJailAsksLittleOfTheAPIServer(t *testing.T) {
	c := theCluster(t)
	var api *kubernetes.API
	d := newDriver(t, c, "asked", func(o *kubernetes.Options) {
		o.Absence = time.Hour
		api = o.API
	})
	s := jailtest.Subject{Driver: d, Template: "busybox"}
	one := func() int64 {
		before := api.Requests()
		j, err := d.Create(t.Context(), s.Spec("exec cat"))
		c.must(err)
		echo(t, j, bufio.NewReader(j.Stdio.Out), "hello")
		j.Stdio.Close()
		c.must(d.Destroy(t.Context(), j.Name))
		return api.Requests() - before
	}
	one() // makes the pool
	minimum := one()
	for range 4 { // what is looked at every ten seconds may come between
		minimum = min(minimum, one())
	}
	t.Logf("a jail asks the API server %d times", minimum)
	if minimum > 5 {
		t.Errorf("it is %d times", minimum)
	}
}

// Pods that wait are looked at before anybody wants them.
func TestAWarmPodBecomesAJail(t *testing.T) {
	c := theCluster(t)
	d := newDriver(t, c, "warm", func(o *kubernetes.Options) { o.Warm = 1 })
	s := jailtest.Subject{Driver: d, Template: "busybox"}
	ready := func() error {
		if got := c.kubectl("", "-n", "warm", "get", "sandboxwarmpools", "-o", "jsonpath={.items[*].status.readyReplicas}"); got != "1" {
			return fmt.Errorf("%q are ready", got)
		}
		return nil
	}
	first := jailtest.Start(t, s, s.Spec("exec cat"))
	echo(t, first, bufio.NewReader(first.Stdio.Out), "cold, and its pool is there")
	for range 3 {
		c.until("a warm pod", []string{"agent-sandbox-controller"}, ready)
		waiting := c.kubectl("", "-n", "warm", "get", "sandboxes", "-o", "name")
		began := time.Now()
		j := jailtest.Start(t, s, s.Spec("exec cat"))
		echo(t, j, bufio.NewReader(j.Stdio.Out), "warm")
		t.Logf("a warm pod answers after %s", time.Since(began).Round(time.Millisecond))
		sandbox := c.kubectl("", "-n", "warm", "get", "sandboxclaim", string(j.Name), "-o", "jsonpath={.status.sandbox.name}")
		if !strings.Contains(waiting, "/"+sandbox+"\n") {
			t.Errorf("%s has the pod of %s, and those that waited were %s", j.Name, sandbox, waiting)
		}
	}
}

// A jail that takes more memory than it has ends with that reason, whether the kernel ends its program alone (control groups of version 1) or all that is
// in its pod (version 2). One whose first process is killed is not waited for.
func TestAJailThatIsOverItsMemoryEndsWithThatReason(t *testing.T) {
	c := theCluster(t)
	d := newDriver(t, c, "greedy", nil)
	s := jailtest.Subject{Driver: d, Template: "busybox"}
	ends := func(j *jail.Jail) jail.Exit {
		t.Helper()
		began := time.Now()
		exit, err := d.Wait(t.Context(), j.Name)
		c.must(err)
		took := time.Since(began)
		if t.Logf("after %s: %+v", took.Round(10*time.Millisecond), exit); took > 20*time.Second {
			t.Errorf("it was waited for: its end was seen after %s", took)
		}
		return exit
	}
	greedy := jailtest.Start(t, s, s.Spec("exec tail /dev/zero"))
	if exit := ends(greedy); exit.Cause != jail.CauseMemory || exit.Signal != "killed" || !slices.Contains(exit.Hit, jail.LimitMemory) {
		t.Errorf("a greedy jail ended with %+v", exit)
	}
	c.must(d.Destroy(t.Context(), greedy.Name))
	j := jailtest.Start(t, s, s.Spec("exec cat"))
	echo(t, j, bufio.NewReader(j.Stdio.Out), "it runs")
	container := strings.TrimSpace(c.kubectl("", "-n", "greedy", "get", "pods", "-o", `jsonpath={.items[?(@.status.phase=="Running")].status.containerStatuses[0].containerID}`))
	out, err := c.ctr("task", "kill", "--signal", "SIGKILL", strings.TrimPrefix(container, "containerd://")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if exit := ends(j); exit.Cause != jail.CauseExited || exit.Signal != "killed" {
		t.Errorf("a jail whose pod was killed ended with %+v", exit)
	}
}

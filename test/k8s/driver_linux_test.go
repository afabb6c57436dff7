//go:build k8s

package k8s

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
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

// setting is a namespace in which only what is restricted may run, with the account of jails in it.
const setting = `
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: jail, namespace: NAMESPACE}
automountServiceAccountToken: false
---
apiVersion: v1
kind: ConfigMap
metadata: {name: gateway, namespace: NAMESPACE}
data:
  authority.pem: |
    AUTHORITY
`

// furnish makes a namespace for jails, and the control plane's side of TLS for them.
func (c *cluster) furnish(namespace string) *tls.Config {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c.must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"gateway"}, IsCA: true, BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	c.must(err)
	authority := strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	c.kubectl(strings.NewReplacer("NAMESPACE", namespace, "AUTHORITY", strings.ReplaceAll(authority, "\n", "\n    ")).Replace(setting), "apply", "-f", "-")
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13}
}

// api is the API server, as the driver asks it.
func (c *cluster) api() *kubernetes.API {
	c.t.Helper()
	api, err := kubernetes.NewAPI(kubernetes.Access{Server: apiAddress, Authority: c.dir + "/pki/apiserver.crt", Token: c.write("admin.token", c.token)})
	c.must(err)
	return api
}

// kept are the tests whose namespace is for another one.
var kept = map[string]bool{}

// newDriver makes one with a namespace of its own.
func newDriver(t *testing.T, c *cluster, namespace string, change func(*kubernetes.Options)) *kubernetes.Driver {
	t.Helper()
	side, api := c.furnish(namespace), c.api()
	l, err := net.Listen("tcp", nodeAddress+":0")
	c.must(err)
	log := &testenv.Buffer{}
	o := kubernetes.Options{
		API: api, Installation: "test", Node: "one", Namespace: namespace, Images: map[string]string{"busybox": "clawjail.test/shim:1"}, Account: "jail",
		Gateway: l.Addr().String(), GatewayName: "gateway", AuthorityMap: "gateway", Log: slog.New(slog.NewTextHandler(log, nil)),
		TLS: side,
	}
	if change != nil {
		change(&o)
	}
	d, err := kubernetes.New(t.Context(), o)
	c.must(err)
	served, ran := make(chan error, 1), make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() { served <- d.Serve(l) }()
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
		if err := <-served; err != nil {
			t.Error(err)
		}
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
func things(c *cluster, namespace string) func(context.Context) ([]jail.Trace, error) {
	return func(context.Context) (out []jail.Trace, err error) {
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
				out = append(out, jail.Trace{Kind: jail.TraceRecord, Index: -1, ID: path + "/" + one.Metadata.Name})
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
		return jailtest.Subject{Driver: newDriver(t, c, namespace, nil), Template: "busybox", Things: things(c, namespace), Missing: "btest99999", Confines: true, OneUser: true}
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
	if left, err := things(c, "unenforced")(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
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

// The parts of the cluster are killed while a jail is used.
func TestAJailOutlivesThePartsOfTheCluster(t *testing.T) {
	c := theCluster(t)
	d := newDriver(t, c, "faults", nil)
	s := jailtest.Subject{Driver: d, Template: "busybox", Things: things(c, "faults")}
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

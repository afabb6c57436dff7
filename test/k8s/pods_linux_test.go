//go:build k8s

package k8s

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// gateway is the control plane's side, which lets pods of one namespace in.
type gateway struct {
	c         *cluster
	namespace string
	api       *kubernetes.API
	arrived   chan arrival
	log       *testenv.Buffer
}

type arrival struct {
	*shim.Pod
	kubernetes.Identity
}

const gatewayPort = 7777

// newGateway makes one for a namespace of its own, with a warm pool of one pod.
func newGateway(c *cluster, namespace string) *gateway {
	c.t.Helper()
	c.furnish(namespace)
	side, pin, err := shim.ServerTLS(gatewayKey)
	c.must(err)
	g := &gateway{c: c, namespace: namespace, api: c.api(), arrived: make(chan arrival, 16), log: &testenv.Buffer{}}
	server := shim.NewServer(shim.Options{
		TLS: side,
		Who: func(ctx context.Context, token string, from netip.Addr) (string, any, error) {
			id, err := g.api.Identify(ctx, namespace, token, from)
			if err != nil {
				return "", nil, err
			}
			return id.UID, id, nil
		},
		Arrived: func(p *shim.Pod) { g.arrived <- arrival{p, p.About().(kubernetes.Identity)} },
		Window:  time.Minute, Log: slog.New(slog.NewTextHandler(g.log, nil)),
	})
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", nodeAddress, gatewayPort))
	c.must(err)
	served := make(chan struct{})
	go func() {
		server.Serve(l)
		close(served)
	}()
	c.t.Cleanup(func() {
		c.kubectl("", "delete", "namespace", namespace, "--wait=false")
		_ = l.Close()
		server.Close()
		g.api.Close()
		<-served
		if c.t.Failed() {
			c.t.Logf("the gateway:\n%s", g.log)
		}
	})
	c.kubectl(strings.NewReplacer("NAMESPACE", namespace, "PIN", pin,
		"GATEWAY", fmt.Sprintf("%s:%d", nodeAddress, gatewayPort), "AUDIENCE", kubernetes.Audience).Replace(manifest), "apply", "-f", "-")
	return g
}

// manifest is a warm pool of pods.
const manifest = `
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: jail, namespace: NAMESPACE}
spec:
  networkPolicyManagement: Unmanaged
  podTemplate:
    spec:
      serviceAccountName: default
      automountServiceAccountToken: false
      enableServiceLinks: false
      restartPolicy: Never
      terminationGracePeriodSeconds: 15
      dnsPolicy: None
      dnsConfig: {nameservers: [127.0.0.1]}
      securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: jail
        image: clawjail.test/shim:1
        imagePullPolicy: Never
        args: [--gateway, "GATEWAY", --pin, "PIN", --token, /run/clawjail/token]
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
        resources: {limits: {memory: 256Mi, cpu: 500m}}
        startupProbe: {exec: {command: [/clawjail-shim, ready]}, periodSeconds: 1, failureThreshold: 3600}
        volumeMounts:
        - {name: identity, mountPath: /run/clawjail, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /state}
        - {name: shm, mountPath: /dev/shm}
      volumes:
      - name: identity
        projected:
          sources:
          - serviceAccountToken: {audience: AUDIENCE, expirationSeconds: 600, path: token}
      - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
      - {name: home, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
      - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: jails, namespace: NAMESPACE}
spec: {replicas: 1, sandboxTemplateRef: {name: jail}}
`

// next is the next pod that connects.
func (g *gateway) next() arrival {
	g.c.t.Helper()
	select {
	case a := <-g.arrived:
		return a
	case <-time.After(startLimit):
		g.c.t.Logf("%s", g.c.kubectl("", "-n", g.namespace, "get", "events"))
		g.c.t.Logf("%s", g.c.kubectl("", "-n", g.namespace, "describe", "pods,sandboxes"))
		g.c.t.Fatalf("no pod has connected\n%s", g.log)
	}
	return arrival{}
}

// declared is how a pod should be confined, as far as Kubernetes can say it: it has no way to forbid programs in a volume of memory, nor to bound tasks.
func declared() jail.Profile {
	limits := jail.Limits{Memory: 256 << 20, MilliCPU: 500, Tasks: 100, Disk: 8 << 20, SharedMemory: 1 << 20, Files: 256, WallClock: time.Hour}
	return jail.ProfileFor(jail.Spec{Kind: jail.KindAgent, Limits: limits}, jail.Lease{UID: 1000}).With(jail.Means{Seccomp: true, SharedMemoryFolder: true})
}

// expected are the differences that Kubernetes cannot avoid.
func expected(one string) bool {
	for _, known := range []string{"limit tasks", "tmpfs /tmp allows programs", "tmpfs /state has mode 1777", "tmpfs /state allows programs", "tmpfs /dev/shm allows programs",
		"namespaces shared with the host: cgroup", // containerd gives a pod one of its own only with version 2 of control groups
		// Files of the node that a pod is given, and that only root may write.
		"/etc/hosts is writable", "/etc/hostname is writable", "/etc/resolv.conf is writable", "/dev/termination-log is writable", "/dev/mqueue is writable"} {
		if strings.HasPrefix(one, known) {
			return true
		}
	}
	return false
}

func (g *gateway) prepare(a arrival, probes ...shim.Probe) shim.Report {
	g.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	report, err := a.Prepare(ctx, shim.Prepare{Profile: declared(), Probes: probes})
	g.c.must(err)
	return report
}

func (g *gateway) ready(pod string) bool {
	g.c.t.Helper()
	return g.c.kubectl("", "-n", g.namespace, "get", "pod", pod, "-o", `jsonpath={.status.containerStatuses[0].ready}`) == "true"
}

// says runs a script in a pod, and returns what it prints.
func (g *gateway) says(a arrival, script string) string {
	g.c.t.Helper()
	one := g.run(a, script, false)
	_ = one.in.Close()
	out, err := io.ReadAll(one.out)
	g.c.must(err)
	if _, err := one.Wait(context.Background()); err != nil {
		g.c.t.Fatal(err)
	}
	return string(out)
}

type program struct {
	*shim.Running
	in, out *os.File
}

func (g *gateway) run(a arrival, script string, main bool) *program {
	g.c.t.Helper()
	var stdio [3]*os.File
	theirs, in, err1 := os.Pipe()
	out, stdout, err2 := os.Pipe()
	null, err3 := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	g.c.must(errors.Join(err1, err2, err3))
	stdio = [3]*os.File{theirs, stdout, null}
	r, err := a.Run(context.Background(), shim.Run{Main: main, Home: "/state", Program: jail.Program{Argv: []string{"/bin/sh", "-c", script}, Wire: jail.WireStdio}}, stdio)
	g.c.must(err)
	return &program{Running: r, in: in, out: out}
}

func TestAPodOfAClusterIsConfinedAndSaysSo(t *testing.T) {
	c := theCluster(t)
	g := newGateway(c, "confined")
	a := g.next()
	if a.Sandbox == "" || a.Claim != "" {
		t.Errorf("it is %+v", a.Identity)
	}
	if g.ready(a.Identity.Pod) {
		t.Error("it is ready before anybody has looked at it")
	}
	api := shim.Probe{Name: "API server", Network: "tcp", Address: netip.MustParseAddrPort(nodeAddress + ":6443")}
	kubelet := shim.Probe{Name: "node", Network: "tcp", Address: netip.MustParseAddrPort(nodeAddress + ":10250")}
	report := g.prepare(a, api, kubelet)
	diff := slices.DeleteFunc(declared().Compare(report.Observed), expected)
	if len(diff) > 0 {
		t.Errorf("it is not confined as declared: %q", diff)
	}
	t.Logf("observed: %+v", report.Observed)
	if len(report.Addresses) == 0 || !slices.Contains(report.Addresses, a.Address()) {
		t.Errorf("its addresses are %v, and it has connected from %s", report.Addresses, a.Address())
	}
	// The network of this cluster enforces nothing, and that is seen.
	if !slices.Equal(report.Reached, []string{"API server", "node"}) {
		t.Errorf("it reaches %q", report.Reached)
	}
	c.must(a.Ready(t.Context()))
	testenv.Eventually(t, time.Minute, func() bool { return g.ready(a.Identity.Pod) }, "it is ready")

	// With rules it is not reached. The same is asked in the same pod.
	rules := exec.Command("nft", "-f", "-")
	rules.Stdin = strings.NewReader(fmt.Sprintf("table inet clawjail_test { chain in { type filter hook input priority 0; iifname cni0 tcp dport != %d reject; }; }\n", gatewayPort))
	if out, err := rules.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() { c.must(exec.Command("nft", "delete", "table", "inet", "clawjail_test").Run()) }()
	if report = g.prepare(a, api, kubelet); len(report.Reached) > 0 {
		t.Errorf("it still reaches %q", report.Reached)
	}
}

func TestAClaimTakesAPodAndProgramsOutliveTheNodesDaemons(t *testing.T) {
	c := theCluster(t)
	g := newGateway(c, "claimed")
	a := g.next()
	g.prepare(a)
	c.must(a.Ready(t.Context()))
	testenv.Eventually(t, time.Minute, func() bool { return g.ready(a.Identity.Pod) }, "it is ready")
	began := time.Now()
	c.kubectl(`{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxClaim","metadata":{"name":"session-1","namespace":"claimed"},"spec":{"warmPoolRef":{"name":"jails"}}}`, "apply", "-f", "-")
	token := ""
	testenv.Eventually(t, time.Minute, func() bool {
		return c.kubectl("", "-n", "claimed", "get", "sandboxclaim", "session-1", "-o", "jsonpath={.status.sandbox.name}") == a.Sandbox
	}, "the claim has the pod")
	t.Logf("the claim has a warm pod after %s, with kubectl", time.Since(began).Round(time.Millisecond))

	// Whose it is is asked anew: now it is the claim's. Tokens of others are not let in from its address.
	token = strings.TrimSpace(g.says(a, "cat /run/clawjail/token"))
	id, err := g.api.Identify(t.Context(), "claimed", token, a.Address())
	if err != nil || id.Claim != "session-1" || id.UID != a.UID {
		t.Errorf("it is %+v, %v", id, err)
	}
	refused := func(what, namespace, token string, from netip.Addr) {
		t.Helper()
		_, err := g.api.Identify(t.Context(), namespace, token, from)
		if p := new(problem.Error); !errors.As(err, &p) || p.Code != problem.Unauthorized {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("from another address", "claimed", token, netip.MustParseAddr("10.88.0.250"))
	refused("in another namespace", "default", token, a.Address())
	refused("a token of the account, of no pod", "claimed", strings.TrimSpace(c.kubectl("", "-n", "claimed", "create", "token", "default", "--audience", kubernetes.Audience)), a.Address())
	refused("a token of the pod for another audience", "claimed", strings.TrimSpace(c.kubectl("", "-n", "claimed", "create", "token", "default", "--audience", "somebody",
		"--bound-object-kind", "Pod", "--bound-object-name", id.Pod, "--bound-object-uid", id.UID)), a.Address())
	bound := strings.TrimSpace(c.kubectl("", "-n", "claimed", "create", "token", "default", "--audience", kubernetes.Audience, "--bound-object-kind", "Pod", "--bound-object-name", id.Pod, "--bound-object-uid", id.UID))
	if _, err := g.api.Identify(t.Context(), "claimed", bound, a.Address()); err != nil {
		t.Errorf("a token of the pod, as a control: %v", err)
	}

	// With version 1 of control groups a program that takes more memory than the pod has is ended, and not the pod.
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		greedy := g.run(a, "exec tail /dev/zero", false)
		if exit, err := greedy.Wait(t.Context()); err != nil || exit.Signal != "killed" {
			t.Errorf("the greedy program ended with %+v, %v", exit, err)
		}
		if used, err := a.Usage(t.Context()); err != nil || !slices.Contains(used.Hit, jail.LimitMemory) {
			t.Errorf("the pod has used %+v, %v", used, err)
		}
	}
	if used, err := a.Usage(t.Context()); err != nil || used.MemoryBytes == 0 || used.CPU == 0 {
		t.Errorf("the pod has used %+v, %v", used, err)
	}

	// A program copies its stdin while kubelet and containerd are killed and start again.
	one := g.run(a, "exec cat", true)
	sent := bytes.Repeat([]byte("all of this comes back once and in order\n"), 200_000)
	wrote := make(chan error, 1)
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 32<<10)
			if _, err := one.in.Write(rest[:n]); err != nil {
				wrote <- err
				return
			}
			rest = rest[n:]
			time.Sleep(30 * time.Millisecond)
		}
		wrote <- one.in.Close()
	}()
	read := make(chan struct{})
	var got []byte
	go func() {
		defer close(read)
		got, err = io.ReadAll(one.out)
	}()
	c.restart("containerd")
	c.restart("kubelet")
	select {
	case <-read:
		t.Error("everything was copied before they were killed")
	default:
	}
	<-read
	if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(sent), err)
	}
	if exit, err := one.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("it ended with %+v, %v", exit, err)
	}
	// The pod ends as its program does, and its token is good for nothing from then on.
	c.until("the end of the pod", []string{"kubelet", "containerd"}, func() error {
		if phase := c.kubectl("", "-n", "claimed", "get", "pod", id.Pod, "-o", "jsonpath={.status.phase}"); phase != "Succeeded" {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	refused("a pod that has ended", "claimed", token, a.Address())
	c.kubectl("", "-n", "claimed", "delete", "sandboxclaim", "session-1")
	c.until("the removal of the pod", []string{"agent-sandbox-controller", "kubelet"}, func() error {
		if left := c.kubectl("", "-n", "claimed", "get", "pod", id.Pod, "--ignore-not-found", "-o", "name"); left != "" {
			return errors.New(left + " is there")
		}
		return nil
	})
	refused("a pod that is removed", "claimed", token, a.Address())
}

//go:build k8s

package k8s

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// helm runs Helm with an admin's rights.
func (c *cluster) helm(argv ...string) (string, error) {
	cmd := exec.Command(c.parts+"/helm", append(slices.Clone(argv), "--kubeconfig", c.dir+"/kubeconfig")...)
	cmd.Env = append(os.Environ(), "HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) mustHelm(argv ...string) string {
	c.t.Helper()
	out, err := c.helm(argv...)
	if err != nil {
		c.t.Fatalf("helm %s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return out
}

// chart is the folder of the chart.
func (c *cluster) chart() string {
	return filepath.Join(testenv.Repository(c.t), "packaging/kubernetes/chart")
}

// importProgram makes an image of the whole program, with a shell beside it, as the one of packaging/container has.
func (c *cluster) importProgram() (repository, tag string) {
	c.t.Helper()
	files := map[string][]byte{
		"etc/passwd": []byte("root:x:0:0::/root:/bin/sh\nclawjail:x:990:990::/var/lib/clawjail/control:/bin/false\n"),
		"etc/group":  []byte("root:x:0:\nclawjail:x:990:\n"),
	}
	read := func(place, path string) {
		text, err := os.ReadFile(path)
		c.must(err)
		files[place] = text
	}
	out := c.dir + "/programs/"
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./cmd/clawjail", "./cmd/clawjail-spawn", "./cmd/clawjail-shim")
	build.Dir, build.Env = testenv.Repository(c.t), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		c.t.Fatalf("build clawjail: %v: %s", err, text)
	}
	read("usr/bin/clawjail", out+"clawjail")
	read("usr/libexec/clawjail-spawn", out+"clawjail-spawn")
	read("usr/libexec/clawjail-shim", out+"clawjail-shim")
	read("bin/busybox", "/bin/busybox")
	read("etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt")
	c.image("clawjail.test/clawjail:1", []string{"/usr/bin/clawjail"}, files)
	return "clawjail.test/clawjail", "1"
}

// route runs what makes a cluster of a node besides its kubelet, until the test ends: services, and the policies of the network.
func (c *cluster) route() {
	c.t.Helper()
	router := c.start("kube-router", "kube-router", "--kubeconfig", c.dir+"/kubeconfig", "--hostname-override", "one", "--run-router=false", "--run-service-proxy=false", "--run-loadbalancer=false", "--run-firewall=true",
		"--enable-ipv6=false", "--health-port=0", "--service-cluster-ip-range="+serviceSubnet)
	c.t.Cleanup(func() {
		if c.t.Failed() {
			text, _ := os.ReadFile(router.log)
			c.t.Logf("kube-router:\n%s", text[max(0, len(text)-6000):])
		}
		_ = router.cmd.Process.Kill()
		<-router.end
		// It goes on to a part that does not run here, and panics there.
		if out, err := exec.Command(c.parts+"/kube-router", "--cleanup-config").CombinedOutput(); !strings.Contains(string(out), "Successfully cleaned the NetworkPolicyController") {
			c.t.Errorf("take the rules away: %v: %s", err, out)
		}
	})
}

// serve runs what makes the addresses of services, until the test ends.
func (c *cluster) serve() {
	c.t.Helper()
	proxy := c.start("kube-proxy", "kubernetes", "kube-proxy", "--kubeconfig", c.dir+"/kubeconfig", "--hostname-override", "one", "--proxy-mode", "nftables", "--cluster-cidr", podSubnet,
		"--conntrack-max-per-core", "0", "--nodeport-addresses", nodeAddress+"/32")
	c.t.Cleanup(func() {
		if c.t.Failed() {
			text, _ := os.ReadFile(proxy.log)
			c.t.Logf("kube-proxy:\n%s", text[max(0, len(text)-6000):])
		}
		_ = proxy.cmd.Process.Kill()
		<-proxy.end
		_ = exec.Command("nft", "delete", "table", "ip", "kube-proxy").Run() // there is none when it could not make one
		_ = exec.Command("nft", "delete", "table", "ip6", "kube-proxy").Run()
	})
}

// offer lets pods reach a PostgreSQL server that has a socket of UNIX alone, with TLS and the certificate of the API server, until the test ends.
func (c *cluster) offer(address, socket string) {
	c.t.Helper()
	pair, err := tls.LoadX509KeyPair(c.dir+"/pki/apiserver.crt", c.dir+"/pki/apiserver.key")
	c.must(err)
	l, err := net.Listen("tcp", address)
	c.must(err)
	c.t.Cleanup(func() { _ = l.Close() })
	carry := func(raw net.Conn) {
		defer func() { _ = raw.Close() }()
		// It asks whether there is TLS, in eight bytes: https://www.postgresql.org/docs/current/protocol-message-formats.html
		if _, err := io.ReadFull(raw, make([]byte, 8)); err != nil {
			return
		}
		if _, err := raw.Write([]byte("S")); err != nil {
			return
		}
		in := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{pair}})
		out, err := net.Dial("unix", socket)
		if err != nil {
			return
		}
		defer func() { _ = out.Close() }()
		go func() {
			_, _ = io.Copy(out, in) // it ends with either
			_ = out.Close()
		}()
		_, _ = io.Copy(in, out)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go carry(conn)
		}
	}()
}

// Whatever the values, the API server takes what the chart makes of them, and values that go nowhere are refused before it is asked.
func TestWhatTheChartMakesIsOfTheClustersSchema(t *testing.T) {
	c := theCluster(t)
	c.kubectl("", "create", "namespace", "values")
	c.kubectl("", "create", "namespace", "values-jails")
	t.Cleanup(func() { c.kubectl("", "delete", "namespace", "values", "values-jails", "--wait=false") })
	render := func(values string) (string, error) {
		t.Helper()
		return c.helm("template", "values", c.chart(), "--namespace", "values", "--set", "image.repository=registry.example.com/clawjail,image.tag=v1,jails.namespace=values-jails,jails.create=false",
			"--set", "config.kubernetes.images.browser=registry.example.com/browser:1", "--set-json", values)
	}
	for _, values := range []string{
		`replicas=1`,
		`config={"behind_proxy":["10.0.0.0/8"],"public_url":"https://clawjail.example.com"}`,
		`replicas=3,database={"secret":"db","authority":"ca"},keys={"secret":"keys"},podDisruptionBudget={"maxUnavailable":"50%"},persistence={"size":"1.5Gi","storageClass":"fast"}`,
		`autoscaling={"enabled":true,"maxReplicas":4},database={"secret":"db"},keys={"secret":"keys"},serviceMonitor={"enabled":true,"keySecret":"scraper","labels":{"release":"prometheus"}}`,
		`config={"metrics":{"open":true}},serviceMonitor={"enabled":true},tls={"secret":"certificate"},service={"type":"LoadBalancer","port":8443,"annotations":{"a":"b"}}`,
		`imagePullSecrets=[{"name":"registry"}],nodeSelector={"a":"b"},tolerations=[{"key":"a","operator":"Exists"}],podAnnotations={"c":"d"},podDisruptionBudget={"enabled":false},serviceAccount={"name":"other","annotations":{"e":"f"}},topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway"}],affinity={"podAntiAffinity":{}}`,
	} {
		text, err := render(values)
		if err != nil {
			t.Errorf("%s: %v: %s", values, err, text)
			continue
		}
		c.kubectl(text, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
	}
	for values, says := range map[string]string{
		`replicas=2`: "keys.secret", `autoscaling={"enabled":true}`: "keys.secret", `keys={"secret":"k"}`: "database.secret", `serviceMonitor={"enabled":true}`: "keySecret",
		`replica=2`: "replica", `replicas=0`: "replicas", `config={"listen":"0.0.0.0:1"}`: "listen", `config={"kubernetes":{"server":"x"}}`: "server", `image={"pullPolicy":"Sometimes"}`: "pullPolicy", `persistence={"size":"large"}`: "size",
	} {
		if out, err := render(values); err == nil || !strings.Contains(out, says) {
			t.Errorf("%s: %v: %s", values, err, out)
		}
	}
	// What is kept is what is seen to be wrong, as a control.
	text, err := render("replicas=1")
	c.must(err)
	wrong := strings.Replace(text, "serviceName:", "servicename:", 1)
	if out, err := c.tryKubectl(wrong, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"); err == nil || !strings.Contains(out, "servicename") {
		t.Errorf("a wrong field is taken: %v: %s", err, out)
	}
}

// installation is what the chart has made in a namespace, with a database that is a process of this machine.
type installation struct {
	*cluster
	namespace string
	server    *pgtest.Server
}

// release is the name of all of them.
const release = "jailer"

// install has Helm install one control plane with a database, and a second one with the keys of the first.
func (c *cluster) install(namespace string) *installation {
	c.t.Helper()
	t := c.t
	c.store()
	repository, tag := c.importProgram()
	browser, clawbot := c.importTemplate("browser"), c.importTemplate("clawbot")
	c.route()
	c.serve()
	i := &installation{c, namespace, pgtest.Start(t)}
	address, err := url.Parse(i.server.Database(t))
	c.must(err)
	c.offer(nodeAddress+":5432", address.Query().Get("host")+"/.s.PGSQL.5432")
	values := c.write("values.yaml", `
image: {repository: `+repository+`, tag: "`+tag+`", pullPolicy: Never}
config:
  kubernetes: {images: {browser: "`+browser+`", clawbot: "`+clawbot+`"}}
  warm_pool: {size: 0}
jails: {namespace: `+namespace+`-jails}
database: {secret: database, authority: authority}
persistence: {size: 1Gi}
resources: {requests: {cpu: 100m}}
drainSeconds: 60
`)
	t.Cleanup(func() {
		if t.Failed() {
			for _, argv := range [][]string{{"get", "events,pods", "-A"}, {"-n", namespace, "logs", release + "-0", "--all-containers", "--tail=80"}, {"-n", namespace, "logs", release + "-1", "--all-containers", "--tail=80"}} {
				out, _ := c.tryKubectl("", argv...)
				t.Logf("%s:\n%s", strings.Join(argv, " "), out)
			}
		}
		c.kubectl("", "delete", "namespace", namespace, namespace+"-jails", "--ignore-not-found", "--wait=false")
	})
	began := time.Now()
	c.kubectl("", "create", "namespace", namespace)
	c.kubectl("", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=baseline")
	c.kubectl("", "-n", namespace, "create", "secret", "generic", "database", "--from-literal=url=postgres://clawjail:word@"+nodeAddress+":5432"+address.Path+"\n") // as of a file
	c.kubectl("", "-n", namespace, "create", "secret", "generic", "authority", "--from-file=ca.crt="+c.dir+"/pki/apiserver.crt")
	c.mustHelm("install", release, c.chart(), "--namespace", namespace, "--values", values, "--wait", "--timeout", "60s")
	t.Logf("the first is ready after %s", time.Since(began).Round(100*time.Millisecond))

	keys := []string{"-n", namespace, "create", "secret", "generic", "keys"}
	for _, key := range []string{"admin.key", "vault.key", "grants.key"} {
		out, err := exec.Command(c.parts+"/kubernetes", "kubectl", "--kubeconfig", c.dir+"/kubeconfig", "-n", namespace, "exec", release+"-0", "--", "/bin/busybox", "cat", "/var/lib/clawjail/control/"+key).Output()
		c.must(err)
		keys = append(keys, "--from-file="+key+"="+c.write(key, string(out)))
	}
	c.kubectl("", keys...)
	c.mustHelm("upgrade", release, c.chart(), "--namespace", namespace, "--values", values, "--set", "replicas=2,keys.secret=keys", "--wait", "--timeout", "90s")
	t.Logf("two are ready after %s", time.Since(began).Round(100*time.Millisecond))
	return i
}

// pod is the name of one of the control planes.
func (i *installation) pod(n int) string { return fmt.Sprintf("%s-%d", release, n) }

// try runs a command of clawjail in the pod of a control plane.
func (i *installation) try(n int, argv ...string) (string, error) {
	return i.tryKubectl("", append([]string{"-n", i.namespace, "exec", i.pod(n), "--", "/usr/bin/clawjail"}, argv...)...)
}

func (i *installation) in(n int, argv ...string) string {
	i.t.Helper()
	out, err := i.try(n, argv...)
	if err != nil {
		i.t.Fatalf("clawjail %s in %s: %v: %s", strings.Join(argv, " "), i.pod(n), err, out)
	}
	return out
}

// Helm installs all of it; a second control plane comes with the keys of the first, and none ends a session when it is updated.
func TestTheChartInstalls(t *testing.T) {
	c := theCluster(t)
	i := c.install("chart")
	began := time.Now()
	took := func(what string) {
		t.Logf("%s after %s", what, time.Since(began).Round(100*time.Millisecond))
		began = time.Now()
	}
	if got := i.in(0, "status"); !strings.Contains(got, "2 control planes, jailer-0 alive, jailer-1 alive") {
		t.Errorf("the status is %s", got)
	}
	c.kubectl("# Netscape HTTP Cookie File\n.example.com\tTRUE\t/\tTRUE\t4102444800\tsid\tvalue-of-the-cookie\n", "-n", "chart", "exec", "-i", i.pod(0), "--", "/usr/bin/clawjail", "cookies", "import", "-", "--domain", "example.com")
	// The control plane, which has the accounts, has no token of the cluster, and the pod has few rights.
	for command, want := range map[string]string{
		"stat -L -c %a:%u /var/run/secrets/kubernetes.io/serviceaccount/token": "600:0", "stat -L -c %a:%U:%G /etc/clawjail/clawjail.yml": "640:root:clawjail",
		"grep CapBnd /proc/1/status": "CapBnd:\t00000000000000eb", "grep NoNewPrivs /proc/1/status": "NoNewPrivs:\t1", "touch /x": "touch: /x: Read-only file system",
	} {
		got, _ := c.tryKubectl("", append([]string{"-n", "chart", "exec", i.pod(0), "--", "/bin/busybox"}, strings.Fields(command)...)...)
		if got, _, _ := strings.Cut(got, "\n"); got != want {
			t.Errorf("%s says %q, and not %q", command, got, want)
		}
	}
	var opened struct{ ID string }
	c.must(json.Unmarshal([]byte(i.in(1, "session", "open", "--json")), &opened))
	took("a session is there")
	session := opened.ID
	if got := i.in(0, "session", "eval", session, "6*7"); !strings.Contains(got, "42") {
		t.Errorf("by way of the other control plane the browser says %q", got)
	}
	i.in(0, "agent", "add", "bot", "--state", "64MiB")
	c.until("that the agent runs", nil, func() error {
		out, err := i.try(0, "agent", "exec", "bot", "--", "/bin/sh", "-c", "echo kept >/state/file; id -u")
		if err != nil || strings.TrimSpace(out) != "1000" {
			err = fmt.Errorf("%w: %s", cmp.Or(err, errors.New("it answers")), out)
		}
		return err
	})
	took("an agent runs")

	if out, err := i.try(0, "doctor", "--kubernetes"); err != nil || !strings.Contains(out, "in a pod that is confined as declared") {
		t.Errorf("the doctor says: %v: %s", err, out)
	}
	took("the doctor has looked")
	binding := c.kubectl("", "-n", "chart-jails", "get", "rolebinding", "jailer", "-o", "json")
	c.kubectl("", "-n", "chart-jails", "delete", "rolebinding", "jailer")
	if out, err := i.try(0, "doctor"); err == nil || !strings.Contains(out, "may not create sandboxclaims.extensions.agents.x-k8s.io") {
		t.Errorf("without its rights the doctor says: %v: %s", err, out)
	}
	c.kubectl(binding, "apply", "-f", "-")

	// A pod that is to end waits for its session, is no more asked for new ones, and is reached through the other.
	c.kubectl("", "-n", "chart", "delete", "pod", "jailer-1", "--wait=false")
	c.until("that it drains", nil, func() error {
		out := c.kubectl("", "-n", "chart", "get", "pod", "jailer-1", "-o", "jsonpath={.metadata.deletionTimestamp} {.status.conditions[?(@.type=='Ready')].status}")
		if deleted, ready, _ := strings.Cut(out, " "); deleted == "" || ready != "False" {
			return errors.New(out)
		}
		return nil
	})
	if got := i.in(0, "session", "eval", session, "6*8"); !strings.Contains(got, "48") {
		t.Errorf("while its control plane drains the browser says %q", got)
	}
	i.in(0, "session", "close", session)
	began = time.Now()
	c.kubectl("", "-n", "chart", "wait", "--for=jsonpath={.status.readyReplicas}=2", "statefulset/jailer", "--timeout=60s")
	took("the next one is there")
	if got := i.in(1, "node", "ls"); strings.Count(got, "jailer-") != 2 {
		t.Errorf("the control planes are %s", got)
	}

	// What control planes have made goes with them, and what agents have kept does not.
	c.kubectl("", "-n", "chart", "scale", "statefulset/jailer", "--replicas=0")
	c.kubectl("", "-n", "chart", "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=clawjail", "--timeout=90s")
	took("both are gone")
	c.until("that nothing of theirs is left", nil, func() error {
		if left := c.kubectl("", "-n", "chart-jails", "get", "leases,sandboxclaims,sandboxes,sandboxtemplates,sandboxwarmpools,pods", "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
	c.mustHelm("uninstall", release, "--namespace", "chart", "--wait")
	if left := c.kubectl("", "-n", "chart-jails", "get", "pvc,role,rolebinding,networkpolicy", "-o", "name"); left != "persistentvolumeclaim/state-bot\n" {
		t.Errorf("helm has left %s", left)
	}

	// All that a database and the keys do not have may be lost: an account is there again, and the record is whole.
	c.kubectl("", "-n", "chart", "delete", "pvc", "--all")
	began = time.Now()
	c.mustHelm("install", release, c.chart(), "--namespace", "chart", "--values", c.dir+"/values.yaml", "--set", "keys.secret=keys", "--wait", "--timeout", "60s")
	took("it is restored")
	if got := i.in(0, "cookies", "ls"); !strings.Contains(got, "example.com") {
		t.Errorf("the accounts are %s", got)
	}
	if got, err := i.try(0, "audit", "verify"); err != nil {
		t.Errorf("the record is: %v: %s", err, got)
	}
}

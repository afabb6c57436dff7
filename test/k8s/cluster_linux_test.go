//go:build k8s

package k8s

import (
	"archive/tar"
	"bytes"
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
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/clawjail/clawjail/internal/testenv"
)

// insideVariable is set in the process numbers and mounts that a cluster has for itself.
const insideVariable = "CLAWJAIL_TEST_CLUSTER"

// partsVariable names the folder of all parts, and of the programs of this repository that go into pods, where nothing can be built.
const partsVariable = "CLAWJAIL_TEST_K8S"

// TestMain runs the tests as the first process of their own: whatever a part has started ends with them.
func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			fmt.Fprintln(os.Stderr, "mount /proc:", err)
			os.Exit(1)
		}
		status := m.Run()
		os.Exit(status)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	err := cmd.Run()
	removeGroups()
	var status *exec.ExitError
	if errors.As(err, &status) {
		os.Exit(status.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	nodeAddress = "198.18.0.2" // alone.sh gives it to the network of the tests
	apiAddress  = "https://" + nodeAddress + ":6443"
	groupsName  = "clawjail-test-k8s"
	// podSubnet is the network of pods, and podBridge the node's address in it.
	podSubnet = "10.88.0.0/24"
	podBridge = "10.88.0.1"
	// serviceSubnet has the addresses of services.
	serviceSubnet = "10.96.0.0/16"
	startLimit    = 2 * time.Minute
)

// groups are the folders of control groups that the kubelet puts pods below.
func groups() (out []string) {
	for _, controllers := range []string{"memory", "cpu", "cpu,cpuacct", "cpuacct", "pids", "cpuset", "devices", "freezer", "blkio", "net_cls", "net_cls,net_prio", "hugetlb", "perf_event", "systemd", "."} {
		dir := filepath.Join("/sys/fs/cgroup", controllers)
		if _, err := os.Stat(dir + "/cgroup.procs"); err == nil {
			out = append(out, filepath.Join(dir, groupsName))
		}
	}
	return out
}

func removeGroups() {
	for _, dir := range groups() {
		var all []string
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for n := len(all) - 1; n >= 0; n-- {
			_ = os.Remove(all[n]) // it is empty: the processes have ended
		}
	}
}

// cluster is one that runs.
type cluster struct {
	t      testing.TB
	parts  string
	dir    string
	token  string // of an admin
	client *http.Client

	mu      sync.Mutex       // guards what follows
	running map[string]*part // the last one of each name
}

// part is one of its programs.
type part struct {
	cmd *exec.Cmd
	log string
	end chan struct{}
}

var shared = sync.OnceValue(func() *cluster { return &cluster{running: map[string]*part{}} })

// theCluster is the one of all tests, which ends with them.
func theCluster(t *testing.T) *cluster {
	t.Helper()
	testenv.Root(t)
	c := shared()
	c.t = t
	if c.dir == "" {
		began := time.Now()
		c.up()
		t.Logf("the cluster is there after %s", time.Since(began).Round(100*time.Millisecond))
	}
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) write(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	c.must(errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	return path
}

// start starts a part.
func (c *cluster) start(name string, argv ...string) *part {
	c.t.Helper()
	p, err := c.spawn(name, argv...)
	c.must(err)
	return p
}

func (c *cluster) spawn(name string, argv ...string) (*part, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(c.parts, argv[0]), argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, c.dir
	cmd.Env = append(os.Environ(), "PATH="+c.parts+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &part{cmd: cmd, log: log.Name(), end: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.end)
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[name] = p
	return p, nil
}

// keep starts a part, and starts it again whenever it ends, as a machine's service manager does. Some end by themselves when another one was
// killed, such as a scheduler that has seen two answers to one question.
func (c *cluster) keep(name string, argv ...string) {
	c.t.Helper()
	p := c.start(name, argv...)
	go func() {
		for {
			<-p.end
			time.Sleep(100 * time.Millisecond) // one that ends as soon as it starts would keep a processor busy
			next, err := c.spawn(name, argv...)
			if err != nil {
				return // its absence is seen
			}
			p = next
		}
	}()
}

// all are the parts that run, by their names.
func (c *cluster) all() map[string]*part {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.running)
}

// restart kills a part that is kept, and waits until it is there again and stays.
func (c *cluster) restart(name string) {
	c.t.Helper()
	p := c.all()[name]
	c.must(p.cmd.Process.Kill())
	for end := time.Now().Add(startLimit); time.Now().Before(end); {
		next := c.all()[name]
		if next == p {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p = next
		select {
		case <-p.end:
		case <-time.After(2 * time.Second):
			return
		}
	}
	c.t.Fatalf("%s does not stay", name)
}

// until waits for something, and shows the end of a part's log when it does not come.
func (c *cluster) until(what string, logs []string, is func() error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	for _, name := range logs {
		text, _ := os.ReadFile(filepath.Join(c.dir, name+".log"))
		c.t.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
	}
	c.t.Fatalf("%s: %v", what, err)
}

func (c *cluster) up() {
	c.t.Helper()
	if c.parts = os.Getenv(partsVariable); c.parts == "" {
		out, err := exec.Command(filepath.Join(testenv.Repository(c.t), "scripts/k8s.sh")).Output()
		c.must(err)
		c.parts = strings.TrimSpace(string(out))
	}
	var err error
	c.token = rand.Text()
	c.dir, err = os.MkdirTemp("/var/tmp", "k8s")
	c.must(err)
	for _, dir := range groups() {
		c.must(os.MkdirAll(dir, 0o755))
	}
	c.prepareCpusets()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c.must(err)
	private, err := x509.MarshalECPrivateKey(key)
	c.must(err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	c.must(err)
	signing := c.write("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	verifying := c.write("accounts.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	tokens := c.write("tokens.csv", c.token+`,admin,admin,"system:masters"`+"\n")

	// What control planes ask for is on record.
	auditing := c.write("audit.yaml", `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
		"rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:default", "system:serviceaccounts:chart"]}]}`)

	c.keep("etcd", "etcd", "--data-dir", c.dir+"/etcd", "--unsafe-no-fsync", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--quota-backend-bytes", fmt.Sprint(8<<30), "--logger", "zap", "--log-level", "warn")
	c.keep("kube-apiserver", "kubernetes", "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--cert-dir", c.dir+"/pki", "--bind-address", nodeAddress, "--advertise-address", nodeAddress,
		"--service-cluster-ip-range", serviceSubnet, "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", verifying,
		"--service-account-signing-key-file", signing, "--token-auth-file", tokens, "--authorization-mode", "Node,RBAC", "--audit-log-path", c.dir+"/audit.log", "--audit-policy-file", auditing, "--kubelet-preferred-address-types", "InternalIP", "--allow-privileged=true")
	c.client = &http.Client{}
	c.until("the API server", []string{"kube-apiserver", "etcd"}, func() error {
		authority, err := os.ReadFile(c.dir + "/pki/apiserver.crt")
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
		c.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
		_, err = c.get("/readyz")
		return err
	})
	config := c.kubeconfig()
	c.keep("kube-controller-manager", "kubernetes", "kube-controller-manager", "--kubeconfig", config, "--leader-elect=false", "--kube-api-qps", "500", "--kube-api-burst", "1000", "--service-account-private-key-file", signing,
		"--root-ca-file", c.dir+"/pki/apiserver.crt", "--use-service-account-credentials=false", "--enable-hostpath-provisioner", "--cert-dir", c.dir+"/pki")
	c.keep("kube-scheduler", "kubernetes", "kube-scheduler", "--kubeconfig", config, "--leader-elect=false", "--kube-api-qps", "500", "--kube-api-burst", "1000", "--cert-dir", c.dir+"/pki")
	c.startNode(config)
	c.importImages()

	all, err := filepath.Glob(c.parts + "/crds/*.yaml")
	c.must(err)
	for _, crd := range all {
		c.kubectl("", "apply", "--server-side", "-f", crd)
	}
	for _, crd := range []string{"sandboxes.agents.x-k8s.io", "sandboxclaims.extensions.agents.x-k8s.io", "sandboxtemplates.extensions.agents.x-k8s.io", "sandboxwarmpools.extensions.agents.x-k8s.io"} {
		c.kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd/"+crd)
	}
	c.keep("agent-sandbox-controller", "agent-sandbox-controller", "--kubeconfig", config, "--extensions", "--leader-elect=false", "--metrics-bind-address", "0", "--health-probe-bind-address", "0")
}

// store lets the cluster make volumes, in folders of this machine, until the test ends. Their class is taken for those that name none.
func (c *cluster) store() {
	c.t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for seen := map[string]bool{}; ; {
			// A volume that others make is writable for the group of the pod. This one is root's alone.
			all, _ := filepath.Glob("/tmp/hostpath_pv/*")
			for _, dir := range all {
				if !seen[dir] {
					_ = os.Chmod(dir, 0o777) // it may be gone
					seen[dir] = true
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	c.t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	c.kubectl(`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"standard","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"kubernetes.io/host-path"}`, "apply", "-f", "-")
}

// prepareCpusets gives the groups of version 1 processors and memory, which a new one has not.
func (c *cluster) prepareCpusets() {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile("/sys/fs/cgroup/cpuset/" + file)
		if err == nil {
			c.must(os.WriteFile(filepath.Join("/sys/fs/cgroup/cpuset", groupsName, file), text, 0o600))
		}
	}
}

func (c *cluster) kubeconfig() string {
	return c.write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`, apiAddress, c.dir+"/pki/apiserver.crt", c.token))
}

func (c *cluster) startNode(config string) {
	c.t.Helper()
	c.write("cni/10-bridge.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "dataDir": %q, "routes": [{"dst": "0.0.0.0/0"}]}}]}`, podSubnet, c.dir+"/addresses"))
	socket := c.dir + "/containerd.sock"
	containerd := c.write("containerd.toml", fmt.Sprintf(`version = 3
root = %[1]q
state = %[2]q
[grpc]
  address = %[3]q
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "clawjail.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = %[4]q
`, c.dir+"/containerd", c.dir+"/containerd.run", socket, c.dir+"/cni"))
	c.keep("containerd", "containerd", "--config", containerd)
	c.until("containerd", []string{"containerd"}, func() error { return c.ctr("version").Run() })
	profile, err := os.ReadFile(filepath.Join(testenv.Repository(c.t), "packaging/kubernetes/seccomp.json"))
	c.must(err)
	c.write("kubelet/seccomp/clawjail.json", string(profile))
	kubelet := c.write("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: %s
cgroupRoot: /%s
cgroupsPerQOS: false
podPidsLimit: 512
maxPods: 250
enforceNodeAllocatable: []
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
resolvConf: ""
podLogsDir: %s
containerRuntimeEndpoint: unix://%s
evictionHard: {nodefs.available: "0%%", imagefs.available: "0%%", memory.available: 1Mi}
imageGCHighThresholdPercent: 100
`, nodeAddress, groupsName, c.dir+"/pods.log", socket))
	c.keep("kubelet", "kubernetes", "kubelet", "--kubeconfig", config, "--config", kubelet, "--root-dir", c.dir+"/kubelet", "--cert-dir", c.dir+"/pki", "--node-ip", nodeAddress, "--hostname-override", "one")
	c.until("the node", []string{"kubelet", "containerd"}, func() error {
		out, err := c.get("/api/v1/nodes/one")
		if err == nil && !strings.Contains(string(out), `"reason":"KubeletReady"`) {
			err = errors.New("it is not ready")
		}
		return err
	})
}

func (c *cluster) ctr(argv ...string) *exec.Cmd {
	return exec.Command(c.parts+"/ctr", append([]string{"--address", c.dir + "/containerd.sock", "--namespace", "k8s.io"}, argv...)...)
}

// ask sends a request of an admin to the API server. The answer is one of success, whose body is the caller's to close.
func (c *cluster) ask(ctx context.Context, method, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, apiAddress+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := c.client.Do(r)
	if err == nil && answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return answer, err
}

// get reads something of the API server.
func (c *cluster) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := c.ask(ctx, http.MethodGet, path, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	return io.ReadAll(answer.Body)
}

// record is what the API server has on record of what control planes have asked for.
func (c *cluster) record() (all []request) {
	c.t.Helper()
	log, err := os.ReadFile(c.dir + "/audit.log")
	c.must(err)
	for line := range bytes.Lines(log) {
		var r request
		c.must(json.Unmarshal(line, &r))
		all = append(all, r)
	}
	return all
}

// request is one of them.
type request struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ APIGroup, Resource, Subresource, Namespace string }
	// Annotations say what was decided.
	Annotations map[string]string
}

// what is its verb, group and kind.
func (r request) what() string {
	what := strings.Join([]string{r.Verb, r.ObjectRef.APIGroup, r.ObjectRef.Resource}, " ")
	if r.ObjectRef.Subresource != "" {
		what += "/" + r.ObjectRef.Subresource
	}
	return what
}

// kubectl does something with an admin's rights.
func (c *cluster) kubectl(input string, argv ...string) string {
	c.t.Helper()
	out, err := c.tryKubectl(input, argv...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return out
}

// tryKubectl is kubectl for what may fail.
func (c *cluster) tryKubectl(input string, argv ...string) (string, error) {
	cmd := exec.Command(c.parts+"/kubernetes", append([]string{"kubectl", "--kubeconfig", c.dir + "/kubeconfig"}, argv...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// importImages makes the images of pods: of what is paused, and of the shim with a shell beside it.
func (c *cluster) importImages() {
	c.t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	c.must(err)
	shim, small := c.build("cmd/clawjail-shim"), c.build("test/k8s/smallbrowser/small")
	c.image("clawjail.test/pause:1", []string{"/bin/busybox", "sleep", "2147483647"}, map[string][]byte{"bin/busybox": busybox})
	c.image("clawjail.test/shim:1", []string{"/clawjail-shim"}, map[string][]byte{"bin/busybox": busybox, "clawjail-shim": shim})
	c.image("clawjail.test/plain:1", []string{"/bin/sh"}, map[string][]byte{"bin/busybox": busybox})
	c.image("clawjail.test/small:1", []string{"/clawjail-shim"}, map[string][]byte{"usr/lib/chromium/chromium-headless-shell": small, "clawjail-shim": shim})
}

// build builds a program of this repository.
func (c *cluster) build(source string) []byte {
	c.t.Helper()
	path := filepath.Join(c.dir, filepath.Base(source))
	if os.Getenv(partsVariable) != "" {
		path = filepath.Join(c.parts, filepath.Base(source))
	} else {
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "./"+source)
		build.Dir, build.Env = testenv.Repository(c.t), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			c.t.Fatalf("build %s: %v: %s", source, err, out)
		}
	}
	program, err := os.ReadFile(path)
	c.must(err)
	return program
}

func (c *cluster) image(tag string, argv []string, files map[string][]byte) {
	c.t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"bin", "tmp", "home", "run", "dev", "proc", "sys", "etc", "state"} {
		c.must(w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	c.must(w.WriteHeader(&tar.Header{Name: "bin/sh", Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}))
	for name, data := range files {
		c.must(w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}))
		_, err := w.Write(data)
		c.must(err)
	}
	c.must(w.Close())
	one, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	c.must(err)
	img, err := mutate.AppendLayers(empty.Image, one)
	c.must(err)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{Architecture: runtime.GOARCH, OS: "linux", Config: v1.Config{Entrypoint: argv, Env: []string{"PATH=/bin", "IMAGE=yes"}}, RootFS: mustConfig(c, img).RootFS})
	c.must(err)
	ref, err := name.NewTag(tag)
	c.must(err)
	path := filepath.Join(c.dir, "image.tar")
	c.must(tarball.WriteToFile(path, ref, img))
	if out, err := c.ctr("images", "import", path).CombinedOutput(); err != nil {
		c.t.Fatalf("import %s: %v: %s", tag, err, out)
	}
}

func mustConfig(c *cluster, img v1.Image) *v1.ConfigFile {
	c.t.Helper()
	config, err := img.ConfigFile()
	c.must(err)
	return config
}

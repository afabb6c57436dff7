package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Kubernetes makes jails pods of a cluster.
type Kubernetes struct {
	// Namespace is where the pods are. Empty is none: jails are made on this machine.
	Namespace string `yaml:"namespace"`
	// Address is where pods reach this machine. The zero Addr is the one with which it reaches the API server.
	Address netip.Addr `yaml:"address"`
	// Port is where pods connect to the host daemon.
	Port uint16 `yaml:"port"`
	// Images are those of templates, by their names.
	Images map[string]string `yaml:"images"`
	// Account is the service account of the pods.
	Account string `yaml:"account"`
	// Seccomp is RuntimeDefault, or the path of a profile in the kubelet's folder.
	Seccomp string `yaml:"seccomp"`
	// RuntimeClass is the runtime of the pods; empty is the cluster's.
	RuntimeClass string `yaml:"runtime_class"`
	// Warm is how many pods wait for each kind of jail that was wanted.
	Warm int `yaml:"warm" min:"0" max:"64"`
	// Folder is how large the volume of a folder of agents is.
	Folder Bytes `yaml:"folder" min:"16MiB" max:"64TiB"`
	// StorageClass is that of volumes, and SharedStorageClass that of those that pods of several nodes use at once. Empty is the cluster's default.
	StorageClass       string `yaml:"storage_class"`
	SharedStorageClass string `yaml:"shared_storage_class"`
	// Unreachable is what no pod must reach.
	Unreachable []netip.AddrPort `yaml:"unreachable"`
	// Server, Authority and Token are how the API server is reached from outside of the cluster.
	Server    string `yaml:"server"`
	Authority string `yaml:"authority"`
	Token     string `yaml:"token"`
}

// On says whether jails are pods.
func (k Kubernetes) On() bool { return k.Namespace != "" }

// SeccompDefault is the profile of the runtime.
const SeccompDefault = "RuntimeDefault"

func defaultKubernetes() Kubernetes {
	return Kubernetes{Port: 18795, Account: "default", Seccomp: SeccompDefault, Folder: 10 * GiB}
}

var (
	// labelName is a label of RFC 1123, as Kubernetes names namespaces, and subdomainName the name of its other objects.
	labelName     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	subdomainName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	seccompPath   = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)
)

// maxUnreachable bounds what is tried in each pod.
const maxUnreachable = 32

func (k Kubernetes) validate(v *validation) {
	name := func(key, value string, is *regexp.Regexp) {
		if value != "" && !is.MatchString(value) {
			v.flaw("kubernetes."+key, "write lower-case letters, digits and -", "%q is not a name that Kubernetes takes", value)
		}
	}
	name("namespace", k.Namespace, labelName)
	name("account", k.Account, subdomainName)
	name("runtime_class", k.RuntimeClass, subdomainName)
	name("storage_class", k.StorageClass, subdomainName)
	name("shared_storage_class", k.SharedStorageClass, subdomainName)
	if k.Account == "" {
		v.flaw("kubernetes.account", "leave the key out for default", "is empty")
	}
	if k.Port == 0 {
		v.flaw("kubernetes.port", "leave the key out for 18795", "0 is not a port")
	}
	if a := k.Address; a.IsValid() && (!a.Is4() || a.IsLoopback() || a.IsUnspecified()) {
		v.flaw("kubernetes.address", "write the IPv4 address of this machine in the network of the pods, such as 10.244.1.7", "pods do not reach %s", a)
	}
	if k.Seccomp != SeccompDefault && (!seccompPath.MatchString(k.Seccomp) || strings.Contains("/"+k.Seccomp+"/", "/../")) {
		v.flaw("kubernetes.seccomp", "write RuntimeDefault, or the path of a profile in the kubelet's folder seccomp, such as clawjail.json", "%q is no profile", k.Seccomp)
	}
	for _, template := range slices.Sorted(maps.Keys(k.Images)) {
		if image := k.Images[template]; image == "" || len(image) > 512 || strings.ContainsFunc(image, func(r rune) bool { return r <= ' ' || r > '~' }) {
			v.flaw("kubernetes.images."+template, "write one such as registry.example.com/clawjail/browser:1", "%q is not an image", image)
		}
	}
	if len(k.Unreachable) > maxUnreachable {
		v.flaw("kubernetes.unreachable", fmt.Sprintf("name %d at most", maxUnreachable), "names %d", len(k.Unreachable))
	}
	if k.Server == "" && k.Authority == "" && k.Token == "" {
		return
	}
	u, err := url.Parse(k.Server)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		v.flaw("kubernetes.server", "write something like https://10.1.2.3:6443", "%q is not the address of an API server", k.Server)
	}
	for _, file := range []struct{ key, path string }{{"kubernetes.authority", k.Authority}, {"kubernetes.token", k.Token}} {
		if file.path == "" {
			v.flaw(file.key, "name a file, or leave out kubernetes.server in a pod of the cluster", "is needed with kubernetes.server")
			continue
		}
		v.path(file.key, file.path)
	}
}

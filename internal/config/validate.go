package config

import (
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// firstJail is the last byte of the first jail's address; those below are the gateway's and the template's.
	firstJail = 150
	// autoBits is the size of the network that "auto" takes.
	autoBits = 20
	// Unix socket paths end at 104 bytes on the BSDs; the longest file name that clawjail puts below run_dir fits in
	// the rest.
	longestRunDir = 64
	// Several programs keep a user id in a signed 32-bit number.
	largestUID = math.MaxInt32
	// The ids below are the host's own and its users'.
	smallestUID = 100000
	// namespaceOwners is how far behind the users of jails the owners of their user namespaces are.
	namespaceOwners = 1 << 16
)

// Validate reports everything that is wrong at once, as a *problem.ValidationError with the code bad_config.
func (c Config) Validate() error {
	v := &validation{problem.ValidationError{Code: problem.BadConfig}}
	v.bounds("", c)
	c.validatePaths(v)
	c.validateListener(v)
	c.validateNetwork(v)
	c.Gateway.validate(v)
	c.validateSessions(v)
	c.validateIdentity(v)
	c.Limits.validate(v)
	c.validateAgents(v)
	c.validateServers(v)
	c.HostBrowser.validate(v)
	c.Console.validate(v)
	c.validateStorage(v)
	c.Kubernetes.validate(v)
	oneOf(v, "apparmor", c.AppArmor, AppArmorAuto, AppArmorRequired, AppArmorOff)
	oneOf(v, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf(v, "log.format", c.Log.Format, "text", "json")
	return v.Err()
}

// maxDataset leaves room below it: the name of a dataset has at most 255 characters, its snapshots' included (zfs(8)).
const maxDataset = 120

// A dataset is a pool and at least one more element: clawjail does not work in the root of a pool.
var datasetName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.:-]*(/[A-Za-z0-9][A-Za-z0-9_.:-]*)+$`)

func (c Config) validateStorage(v *validation) {
	oneOf(v, "storage", c.Storage, StorageAuto, StorageOverlay, StorageBtrfs, StorageZFS)
	switch {
	case c.ZFSDataset == "" && c.Storage == StorageZFS:
		v.flaw("zfs_dataset", "name a dataset that exists, for example zroot/clawjail", "storage zfs needs a dataset")
	case c.ZFSDataset != "" && (len(c.ZFSDataset) > maxDataset || !datasetName.MatchString(c.ZFSDataset)):
		v.flaw("zfs_dataset", "write POOL/NAME, for example zroot/clawjail", "%q is not the name of a dataset", c.ZFSDataset)
	}
}

// validation collects flaws that have a hint.
type validation struct{ problem.ValidationError }

func (v *validation) flaw(field, hint, format string, args ...any) {
	v.AddFlaw(problem.Flaw{Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)})
}

// shared are folders of systems. The entries that clawjail makes have plain names, such as cache and database: among those of others
// it would take theirs for its own, and remove them when it is uninstalled.
var shared = []string{"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin", "/srv",
	"/sys", "/tmp", "/usr", "/usr/lib", "/usr/local", "/usr/local/etc", "/usr/local/lib", "/usr/share", "/var", "/var/cache", "/var/db", "/var/lib",
	"/var/log", "/var/run", "/var/spool", "/var/tmp", "/private", "/private/etc", "/private/tmp", "/private/var", "/Library", "/System", "/Users"}

func (c Config) validatePaths(v *validation) {
	for _, p := range []struct{ field, path string }{
		{"data_dir", c.DataDir}, {"run_dir", c.RunDir}, {"templates_dir", c.TemplatesDir},
	} {
		if p.field == "templates_dir" && (p.path == "" || p.path == filepath.Join(c.DataDir, "templates")) {
			continue // follows from data_dir, which has been reported
		}
		v.path(p.field, p.path)
		switch {
		case p.path == "/":
			v.flaw(p.field, "name a folder of its own", "must not be the root of the file system")
		case slices.Contains(shared, p.path):
			v.flaw(p.field, "name a folder of its own, for example "+filepath.Join(p.path, "clawjail"), "must not be %s, which others use as well", p.path)
		}
	}
	if len(c.RunDir) > longestRunDir {
		v.flaw("run_dir", "", "is longer than %d bytes, and the path of a socket must fit", longestRunDir)
	}
	if c.DataDir == c.RunDir && c.DataDir != "" {
		v.flaw("run_dir", "", "must not be data_dir")
	}
	for i, path := range c.ExtraCA {
		v.path(fmt.Sprintf("extra_ca[%d]", i), path)
	}
	if !userName(c.User) {
		v.flaw("user", "write a name such as clawjail", "%q is not the name of a user", c.User)
	}
	if c.User == "root" {
		v.flaw("user", "leave the key out for the user clawjail", "the control plane must not run as root")
	}
	switch c.Runtime {
	case "auto", "runc", "crun", "runsc":
	default:
		if !filepath.IsAbs(c.Runtime) || filepath.Clean(c.Runtime) != c.Runtime {
			v.flaw("runtime", "write auto, runc, crun, runsc or an absolute path", "%q is not a runtime", c.Runtime)
		}
	}
}

func (v *validation) path(field, path string) {
	switch {
	case path == "":
		v.flaw(field, "set it: for a user without a home directory there is no default", "is empty")
	case !filepath.IsAbs(path):
		v.flaw(field, "start it with /", "%q is not an absolute path", path)
	case filepath.Clean(path) != path:
		v.flaw(field, "write "+filepath.Clean(path), "%q is not written plainly", path)
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		v.flaw(field, "", "%q has a control character", path)
	}
}

// userName follows useradd(8): a letter or _, then letters, digits, _ and -.
func userName(name string) bool {
	const longest = 32
	if name == "" || len(name) > longest || strings.Trim(name[:1], "abcdefghijklmnopqrstuvwxyz_") != "" {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

func (c Config) validateListener(v *validation) {
	addr := c.Listen.Addr()
	switch {
	case !c.Listen.IsValid():
		v.flaw("listen", "leave the key out for 127.0.0.1:18780", "is not an address and a port")
	case addr.Zone() != "" || addr.Is4In6():
		v.flaw("listen", "write a plain IPv4 or IPv6 address", "%s has a zone or is IPv4 written as IPv6", addr)
	case c.Listen.Port() == 0:
		v.flaw("listen", "leave the key out for 127.0.0.1:18780", "port 0 is no port")
	case !addr.IsLoopback() && !c.TLS.Set() && len(c.BehindProxy) == 0:
		v.flaw("listen", "set tls (cert and key), or behind_proxy to the addresses of the proxy in front",
			"%s is reachable from other machines, and keys would cross the network in the clear", addr)
	}
	switch at := c.NodeListen; {
	case at == (netip.AddrPort{}):
	case c.Database == "":
		v.flaw("node_listen", "set database, or leave the key out", "nobody else uses the embedded database")
	case !at.IsValid() || at.Addr().IsUnspecified() || at.Addr().Zone() != "" || at.Addr().Is4In6() || at.Port() == 0:
		v.flaw("node_listen", "write the address that the other machines use, such as 10.0.0.1:18790", "%s is not one address and a port", at)
	case at == c.Listen:
		v.flaw("node_listen", "use another port", "%s is that of listen", at)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		v.flaw("tls", "set both, or neither", "needs both cert and key")
	}
	if c.TLS.Cert != "" {
		v.path("tls.cert", c.TLS.Cert)
	}
	if c.TLS.Key != "" {
		v.path("tls.key", c.TLS.Key)
	}
	for i, prefix := range c.BehindProxy {
		field := fmt.Sprintf("behind_proxy[%d]", i)
		v.masked(field, prefix)
		if prefix.Bits() == 0 {
			v.flaw(field, "name the proxy's own addresses", "%s would believe everyone", prefix)
		}
	}
	switch below := PublicPath(c.PublicURL); {
	case c.PublicURL == "":
	case PublicOrigin(c.PublicURL) == "" || PublicOrigin(c.PublicURL)+below != c.PublicURL || !plainPath(below):
		v.flaw("public_url", "write it as browsers do, with the name in lower case and no slash at the end: https://clawjail.example.com, or https://example.com/jail",
			"%q is not the address of a server, or of a path on it", c.PublicURL)
	case slices.Contains(ownPaths, strings.SplitN(below+"/", "/", 3)[1]):
		v.flaw("public_url", "choose another path, for example /jail", "%s is a path of clawjail's own", below)
	}
}

// ownPaths are the first parts of the addresses that clawjail serves. Below one of them an address could be read in two ways.
var ownPaths = []string{"api", "console", "mcp", "metrics", "openapi.json", "openapi.yaml", "openapi-3.0.json", "openapi-3.0.yaml", "svc", "v1"}

// PublicPath is the path of an address, as a proxy gets it; empty when it has none.
func PublicPath(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.EscapedPath()
}

// plainPath says whether a path is empty, or a clean path of letters, digits and "/-_." that is not the root.
func plainPath(p string) bool {
	return p == "" || path.Clean(p) == p && p != "/" && !strings.ContainsFunc(p, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/-_.", r))
	})
}

// PublicOrigin is the origin of an address, as browsers write it (RFC 6454, section 6.1); empty when it has none.
func PublicOrigin(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return ""
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return u.Scheme + "://" + host
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return ""
	}
	return u.Scheme + "://" + host + ":" + port
}

func (v *validation) masked(field string, prefix netip.Prefix) {
	switch {
	case !prefix.IsValid():
		v.flaw(field, "write a network, such as 10.90.0.0/20", "is not a network")
	case prefix.Masked() != prefix:
		v.flaw(field, "write "+prefix.Masked().String(), "%s has bits of a host", prefix)
	}
}

func (c Config) validateNetwork(v *validation) {
	bits := autoBits
	if c.Subnet != (netip.Prefix{}) {
		const minimum, maximum = 16, 24
		addr := c.Subnet.Addr()
		v.masked("subnet", c.Subnet)
		switch {
		case !c.Subnet.IsValid():
			return
		case !addr.Is4():
			v.flaw("subnet", "write an IPv4 network, such as 10.90.0.0/20", "%s is not IPv4", c.Subnet)
			return
		case c.Subnet.Bits() < minimum || c.Subnet.Bits() > maximum:
			v.flaw("subnet", fmt.Sprintf("write one from /%d to /%d", minimum, maximum), "/%d is too large or too small", c.Subnet.Bits())
			return
		case !addr.IsPrivate() && !sharedSpace().Contains(addr):
			v.flaw("subnet", "take one of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10",
				"%s is not private: jails would hide public addresses from this host", c.Subnet)
		}
		bits = c.Subnet.Bits()
	}
	size := 1 << (32 - bits)
	if first, last := int64(c.UIDBase), int64(c.UIDBase)+int64(size)+namespaceOwners; first < smallestUID || last > largestUID {
		v.flaw("uid_base", "leave the key out for the default", "must leave room for %d user ids between %d and %d", size+namespaceOwners, smallestUID, largestUID)
	}
	if jails := size - firstJail - 1; !c.Kubernetes.On() && c.Sessions.Max+c.WarmPool.Size > jails { // pods have addresses of the cluster
		v.flaw("sessions.max", "lower it, lower warm_pool.size, or set a larger subnet",
			"together with the warm pool, %d jails are more than the %d addresses of a /%d", c.Sessions.Max+c.WarmPool.Size, jails, bits)
	}
}

// sharedSpace is RFC 6598, which carriers use behind NAT and which is as unreachable from outside as RFC 1918.
func sharedSpace() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10) }

func (c Config) validateSessions(v *validation) {
	s := c.Sessions
	oneOf(v, "warm_pool.browser", c.WarmPool.Browser, BrowserShell, BrowserFull)
	if s.TTL > s.MaxTTL {
		v.flaw("sessions.ttl", "lower ttl, or raise max_ttl", "%s is longer than max_ttl, %s", s.TTL, s.MaxTTL)
	}
	if oldest := s.MaxTTL + c.WarmPool.MaxAge; s.WallClock < oldest {
		v.flaw("sessions.wall_clock", "raise it, or lower sessions.max_ttl",
			"%s would end sessions early: a browser from the warm pool can be %s old (max_ttl and warm_pool.max_age)", s.WallClock, oldest)
	}
}

func (l Limits) validate(v *validation) {
	v.within("limits.tmp", l.Tmp, l.Memory)
	v.within("limits.shm", l.SHM, l.Memory)
}

// within reports a tmpfs that could never be full. Data in it counts as the jail's memory.
func (v *validation) within(field string, size, memory Bytes) {
	if size > memory {
		v.flaw(field, "lower it, or raise limits.memory", "%s is more than limits.memory, %s, that it is part of", size, memory)
	}
}

func (g Gateway) validate(v *validation) {
	g.validateRelay(v)
	seen := map[string]bool{}
	for i, d := range g.PrivateDestinations {
		field := fmt.Sprintf("gateway.private_destinations[%d]", i)
		if !hostName(d.Host) {
			v.flaw(field+".host", "write one name in lower case, such as git.example.com, or an IP address", "%q is not a host", d.Host)
		}
		switch a := d.Address; {
		case !a.IsValid():
			v.flaw(field+".address", "write the IP address that the host has", "is missing")
		case a.Zone() != "" || a.Is4In6():
			v.flaw(field+".address", "write a plain IPv4 or IPv6 address", "%s has a zone or is IPv4 written as IPv6", a)
		case a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast():
			// Link-local is where clouds keep their metadata service: it is never a destination.
			v.flaw(field+".address", "", "%s can never be a destination", a)
		}
		if len(d.Ports) == 0 {
			v.flaw(field+".ports", "list them, such as [443]", "is missing or empty")
		}
		for j, port := range d.Ports {
			at := fmt.Sprintf("%s.ports[%d]", field, j)
			if port == 0 {
				v.flaw(at, "write one from 1 to 65535", "0 is no port")
			}
			if key := fmt.Sprint(d.Host, " ", port); seen[key] {
				v.flaw(at, "keep one of them", "%s has port %d twice", d.Host, port)
			} else {
				seen[key] = true
			}
		}
	}
}

// hostName accepts a host name in its canonical form (RFC 1123, lower case, no final dot) or an IP address. A name
// whose last label starts with a digit is refused: some programs read such a name as an IPv4 address.
func hostName(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	const longestName, longestLabel = 253, 63
	if host == "" || len(host) > longestName {
		return false
	}
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] >= '0' && last[0] <= '9' {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > longestLabel || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
			label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// bounds reports values of a struct beyond the tags min and max of their fields. Zero gets a hint of its own, because people write
// it for "unlimited"; where it is omitempty, it is not said.
func (v *validation) bounds(at string, of any) {
	yamldoc.Walk(reflect.ValueOf(of), func(path string, is reflect.Value, tags reflect.StructTag) {
		switch {
		case Within(is, tags) || is.IsZero() && strings.Contains(tags.Get("json"), "omitempty"):
		case is.IsZero():
			v.flaw(at+path, "leave the key out for its default", "must not be 0, which is not \"unlimited\"")
		default:
			v.flaw(at+path, "", "%v is not between %s and %s", is, tags.Get("min"), tags.Get("max"))
		}
	})
}

// Within says whether a number, a size or a duration is between the tags min and max of its field, where it has them.
func Within(at reflect.Value, tags reflect.StructTag) bool {
	number := func(v reflect.Value) float64 { return v.Convert(reflect.TypeFor[float64]()).Float() }
	bound := func(text string) float64 {
		var n any
		var err error
		switch at.Interface().(type) {
		case Bytes:
			n, err = ParseBytes(text)
		case time.Duration:
			n, err = time.ParseDuration(text)
		default:
			n, err = strconv.ParseFloat(text, 64)
		}
		if err != nil {
			return math.NaN() // nothing is within what cannot be read
		}
		return number(reflect.ValueOf(n))
	}
	return tags.Get("max") == "" || number(at) >= bound(tags.Get("min")) && number(at) <= bound(tags.Get("max"))
}

func oneOf[T ~string](v *validation, field string, value T, allowed ...T) {
	if !slices.Contains(allowed, value) {
		v.flaw(field, fmt.Sprintf("write one of %v", allowed), "%q is not known here", value)
	}
}

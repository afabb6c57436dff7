package archtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// The layers, from the top. A path stands for the package and everything below it.
var (
	faces    = []string{"internal/cli", "internal/api", "internal/mcp", "internal/console"}
	services = []string{"internal/session", "internal/credential", "internal/egress", "internal/agent", "internal/agentenv", "internal/gateway", "internal/mcpserver", "internal/task", "internal/peer", "internal/metrics", "internal/health", "internal/supportbundle", "internal/auditor"}
	// wiring makes the control plane of all of these, and serves it.
	wiring = []string{"internal/controlplane"}
	// operations are what faces make of services: each is described once.
	operations = []string{"internal/op"}
	identity   = []string{"internal/identity", "internal/vault", "internal/grant", "internal/audit", "internal/cookies", "internal/weblogin"}
	ground     = []string{"internal/jail", "internal/cdp", "internal/store", "internal/ringlog"}
	// drivers are named, because the domain and its conformance suite live beside them.
	drivers = []string{
		"internal/jail/linux", "internal/jail/freebsd", "internal/jail/docker", "internal/jail/zfs", "internal/jail/kubernetes",
	}
	// pure decides and does nothing else, so every layer may use it.
	pure = []string{"internal/policy"}
	// outsiders use the program as its users do: over its API, as processes. Only the command line starts them.
	outsiders = []string{"internal/client", "internal/instance", "internal/selftest"}
	// leaves are used everywhere.
	leaves = []string{"internal/problem", "internal/config"}
	// base is the lowest room: texts, values and files as every other room needs them.
	base = []string{"internal/base"}
)

// rule forbids imports in files that are not tests.
type rule struct {
	from, fromBut   []string // whose imports; and who below that may
	never, neverBut []string // what they must not import; and what below that they may
	why             string
	example         [2]string // an import that the rule forbids
}

// rules is the table. "*" is every package, "std-io" are those of the standard library that do I/O, "outside" is what
// is neither ours nor the standard library's.
var rules = []rule{
	{
		from: []string{"internal"}, fromBut: join(faces, outsiders, wiring), never: faces,
		why:     "faces translate; what two of them need belongs in a service",
		example: [2]string{"internal/session", "internal/api"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/cli", "cmd"}, never: wiring,
		why:     "it is put together of everything else, so only what starts it imports it",
		example: [2]string{"internal/api", "internal/controlplane"},
	}, {
		from: wiring, never: join(drivers, []string{"internal/cli", "internal/template", "internal/jailspawn"}),
		why:     "it serves the API, MCP and the console, asks the host daemon for jails, and is started by the command line",
		example: [2]string{"internal/controlplane", "internal/cli"},
	}, {
		from: []string{"internal/cli"}, never: []string{"internal/gateway", "internal/store/open", "internal/credential", "internal/metrics"}, neverBut: join(pure, []string{"internal/gateway/relay"}),
		why:     "commands start the control plane or speak to it; what it is made of is known in one place",
		example: [2]string{"internal/cli", "internal/gateway"},
	}, {
		from: join(services, identity, ground, leaves, drivers, []string{"internal/hostd", "internal/browser", "internal/template"}), never: operations,
		why:     "an operation is described above the service that it calls",
		example: [2]string{"internal/egress", "internal/op"},
	}, {
		from: operations, never: join(outsiders, drivers, []string{"github.com/danielgtaylor/huma", "internal/hostd", "internal/store"}),
		why:     "a description is for all faces, and calls services alone",
		example: [2]string{"internal/op", "github.com/danielgtaylor/huma/v2"},
	}, {
		from: join(faces, wiring, services, operations, identity, ground, leaves, drivers, []string{"internal/hostd"}), fromBut: []string{"internal/cli"}, never: outsiders,
		why:     "what uses the program from outside is no part of it; the command line starts it",
		example: [2]string{"internal/session", "internal/client"},
	}, {
		from: join(identity, ground, leaves, []string{"internal/browser", "internal/template"}), never: services,
		why:     "services use identity, browsers and jails, not the other way round",
		example: [2]string{"internal/vault", "internal/session"},
	}, {
		from: ground, never: join(identity, []string{"internal/browser"}),
		why:     "jails, CDP, logs and the store know nothing of who uses them",
		example: [2]string{"internal/jail", "internal/vault"},
	}, {
		from: []string{"internal/jail"}, fromBut: drivers, never: drivers,
		why:     "the domain has no technology in it",
		example: [2]string{"internal/jail", "internal/jail/linux"},
	}, {
		from: drivers, never: join(services, faces, identity, []string{"internal/hostd", "internal/browser", "internal/cdp"}),
		why:     "a driver makes jails and knows nothing of what runs in them",
		example: [2]string{"internal/jail/linux", "internal/session"},
	}, {
		from: []string{"internal/hostd"}, never: join(faces, services, identity, []string{"internal/browser", "internal/cdp", "internal/store"}), neverBut: []string{"internal/audit/checkpoint"},
		why:     "the host daemon is root, and stays small",
		example: [2]string{"internal/hostd", "internal/cli"},
	}, {
		from: pure, never: []string{"std-io", "internal", "outside"},
		neverBut: join(pure, []string{"internal/problem", "internal/base/texts", "golang.org/x/net/idna", "golang.org/x/net/publicsuffix", "golang.org/x/text/unicode/norm"}),
		why:      "what decides about the network is pure, so that it can be tested whole; those of outside that are named are tables",
		example:  [2]string{"internal/policy", "net"},
	}, {
		from: []string{"internal/problem"}, never: []string{"internal", "outside"},
		why:     "every package imports it",
		example: [2]string{"internal/problem", "internal/config"},
	}, {
		from: base, never: []string{"internal", "outside"}, neverBut: join(base, []string{"internal/problem", "golang.org/x/sys/unix", "github.com/go-json-experiment/json"}),
		why:     "it is the lowest room, which every other imports",
		example: [2]string{"internal/base/texts", "internal/config"},
	}, {
		from: []string{"internal/config"}, never: []string{"internal"}, neverBut: join(leaves, pure, base),
		why:     "every layer imports it",
		example: [2]string{"internal/config", "internal/jail"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/config/yamldoc"}, never: []string{"go.yaml.in/yaml", "gopkg.in/yaml.v3", "sigs.k8s.io/yaml"},
		why:     "files that people write are read by one strict reader",
		example: [2]string{"internal/agentenv", "go.yaml.in/yaml/v4"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/cdp", "internal/browser"}, never: []string{"github.com/chromedp"},
		why:     "CDP types stay behind the packages that speak CDP",
		example: [2]string{"internal/session", "github.com/chromedp/cdproto/page"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/cli", "cmd", "packaging/manual"}, never: []string{"github.com/spf13"},
		why:     "the command line is one face",
		example: [2]string{"internal/session", "github.com/spf13/cobra"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/store/sqlite", "internal/weblogin/cookiefile/firefox"}, never: []string{"modernc.org/sqlite", "github.com/mattn/go-sqlite3"},
		why:     "a database has one adapter; a browser's profile is a file that is read",
		example: [2]string{"internal/session", "modernc.org/sqlite"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/store/postgres"}, never: []string{"github.com/jackc"},
		why:     "a database has one adapter",
		example: [2]string{"internal/session", "github.com/jackc/pgx/v5"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/jail/docker"}, never: []string{"github.com/moby/moby", "github.com/docker/docker"},
		why:     "an engine's socket is root, and has one client",
		example: [2]string{"internal/session", "github.com/moby/moby/client"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/jail/kubernetes"}, never: []string{"github.com/libp2p"},
		why:     "streams of many programs over one connection are for pods alone",
		example: [2]string{"internal/peer", "github.com/libp2p/go-yamux/v5"},
	}, {
		from: []string{"*"}, fromBut: []string{"internal/jailspawn", "internal/cli", "internal/doctor", "cmd/clawjail-spawn"}, never: []string{"internal/jailspawn"},
		why:     "programs are run without a host daemon by the command line alone; everybody else asks the host daemon",
		example: [2]string{"internal/agent", "internal/jailspawn"},
	}, {
		from:  []string{"internal/jailspawn/helper", "internal/jailspawn/command", "internal/jailspawn/process", "internal/jailspawn/staged", "internal/safepath", "cmd/clawjail-spawn", "internal/hostcmd"},
		never: []string{"internal", "outside", "net", "os/user", "plugin", "encoding", "reflect", "text", "html", "log"},
		neverBut: []string{
			"internal/jailspawn/helper", "internal/jailspawn/command", "internal/jailspawn/process", "internal/jailspawn/staged", "internal/safepath", "internal/hostcmd",
			"golang.org/x/sys/unix",
		},
		why:     "what is setuid root is small: it reads no formats of others and speaks to nobody",
		example: [2]string{"internal/jailspawn/helper", "internal/problem"},
	},
}

func join(lists ...[]string) []string { return slices.Concat(lists...) }

// stdIO are the packages of the standard library that reach outside the process, or say what is there.
var stdIO = []string{
	"os", "net", "net/http", "net/rpc", "net/smtp", "net/textproto", "syscall", "io/fs", "io/ioutil", "log", "database/sql",
	"plugin", "runtime/debug", "crypto/rand", "math/rand", "unsafe",
}

// below says whether a package is one of the listed or below it.
func below(pkg string, list []string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		switch entry {
		case "*":
			return true
		case "std-io":
			// net/netip and net/url only parse: of net and what is under it, only what is listed is I/O.
			return slices.ContainsFunc(stdIO, func(io string) bool {
				return pkg == io || io != "net" && strings.HasPrefix(pkg, io+"/")
			})
		case "outside":
			first, _, _ := strings.Cut(pkg, "/")
			return strings.Contains(first, ".")
		}
		return pkg == entry || strings.HasPrefix(pkg, entry+"/")
	})
}

// forbids says whether the rule objects. Within one listed folder everything may import everything.
func (r rule) forbids(from, pkg string) bool {
	if !below(from, r.from) || below(from, r.fromBut) || !below(pkg, r.never) || below(pkg, r.neverBut) {
		return false
	}
	return !slices.ContainsFunc(r.never, func(folder string) bool {
		return strings.HasPrefix(folder, "internal/") && below(from, []string{folder}) && below(pkg, []string{folder})
	}) && pkg != from
}

func TestImportsPointDownward(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		for _, pkg := range f.imports() {
			for _, r := range rules {
				if r.forbids(f.folder(), pkg) {
					t.Errorf("%s imports %s: %s", f.path, pkg, r.why)
				}
			}
		}
	}
}

func TestEveryRuleObjectsToItsExample(t *testing.T) {
	for _, r := range rules {
		if !r.forbids(r.example[0], r.example[1]) {
			t.Errorf("%s may import %s, against the rule %q", r.example[0], r.example[1], r.why)
		}
	}
}

func TestWhatIsUsedByLayersBelowIsForbidden(t *testing.T) {
	for _, forbidden := range [][2]string{
		{"internal/mcpserver", "internal/mcp"}, {"internal/mcpserver", "internal/client"}, {"internal/vault", "internal/mcpserver"}, {"internal/jail", "internal/agent/compose"},
		{"internal/ringlog", "internal/agent"}, {"internal/ringlog", "internal/audit"}, {"internal/hostd/stdio", "internal/agent"}, {"internal/hostd/agents", "internal/vault"},
		{"internal/gateway/relay", "internal/api"}, {"internal/agent/compose", "internal/cli"}, {"internal/agent", "internal/api/pipes"}, {"internal/hostd", "internal/mcpserver"},
		{"internal/jail/docker", "internal/gateway/relay"}, {"internal/hostd", "internal/jailspawn"}, {"internal/jailspawn/helper", "internal/config"},
		{"internal/jailspawn/helper", "internal/jail"}, {"internal/jailspawn/process", "net/http"}, {"internal/jailspawn/command", "net"}, {"internal/hostcmd", "internal/problem"},
	} {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.forbids(forbidden[0], forbidden[1]) }) {
			t.Errorf("%s may import %s", forbidden[0], forbidden[1])
		}
	}
}

func TestWhatTheLayersAreForIsAllowed(t *testing.T) {
	for _, allowed := range [][2]string{
		{"internal/cli", "internal/session"}, {"internal/cli", "internal/api"}, {"internal/cli", "internal/controlplane"}, {"internal/controlplane", "internal/console"}, {"internal/api", "internal/vault"},
		{"internal/api", "internal/credential"}, {"internal/credential", "internal/vault"}, {"internal/credential", "internal/session"},
		{"internal/session", "internal/policy"}, {"internal/session", "internal/jail"}, {"internal/agent", "internal/gateway"},
		{"internal/agent", "internal/ringlog"}, {"internal/hostd/stdio", "internal/ringlog"}, {"internal/hostd/agents", "internal/jail"},
		{"internal/mcp", "internal/mcpserver"}, {"internal/mcpserver", "internal/vault"}, {"internal/mcpserver", "internal/gateway"},
		{"internal/client", "internal/api/pipes"}, {"internal/cli", "internal/gateway/relay"}, {"internal/agent/compose", "internal/jail"},
		{"internal/hostd", "internal/jail/linux"}, {"internal/jail/linux", "internal/jail"}, {"internal/jail/freebsd", "internal/jail/freebsd/pf"},
		{"internal/policy", "net/netip"}, {"internal/policy", "net/url"}, {"internal/policy", "internal/policy/hostport"},
		{"internal/gateway", "net/http"}, {"internal/config/yamldoc", "go.yaml.in/yaml/v4"}, {"cmd/clawjail", "internal/cli"},
		{"internal/cli", "internal/jailspawn"}, {"internal/jailspawn", "internal/jailspawn/helper"}, {"cmd/clawjail-spawn", "internal/jailspawn/helper"}, {"internal/jailspawn/helper", "golang.org/x/sys/unix"},
		{"internal/session/pool", "internal/session"}, {"internal/jail/jailtest", "internal/jail"},
	} {
		for _, r := range rules {
			if r.forbids(allowed[0], allowed[1]) {
				t.Errorf("%s may not import %s: %s", allowed[0], allowed[1], r.why)
			}
		}
	}
}

// circle is a way by arrows from a room back to it, or nil.
func circle(arrows map[string]map[string]string) []string {
	done := map[string]bool{}
	var way []string
	var walk func(at string) []string
	walk = func(at string) []string {
		if n := slices.Index(way, at); n >= 0 {
			return append(slices.Clone(way[n:]), at)
		}
		if done[at] {
			return nil
		}
		way = append(way, at)
		for _, next := range slices.Sorted(maps.Keys(arrows[at])) {
			if found := walk(next); found != nil {
				return found
			}
		}
		way, done[at] = way[:len(way)-1], true
		return nil
	}
	for _, from := range slices.Sorted(maps.Keys(arrows)) {
		if found := walk(from); found != nil {
			return found
		}
	}
	return nil
}

func TestRoomsImportInNoCircle(t *testing.T) {
	arrows := map[string]map[string]string{}
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		for _, pkg := range f.imports() {
			if from, to := room(f.folder()), room(pkg); strings.HasPrefix(from, "internal/") && strings.HasPrefix(to, "internal/") && from != to {
				if arrows[from] == nil {
					arrows[from] = map[string]string{}
				}
				arrows[from][to] = f.path + " imports " + pkg
			}
		}
	}
	if len(arrows) < 20 {
		t.Fatalf("there are %d rooms with imports", len(arrows))
	}
	found := circle(arrows)
	for n := 1; n < len(found); n++ {
		t.Errorf("%s needs %s: %s", found[n-1], found[n], arrows[found[n-1]][found[n]])
	}
	arrows["internal/policy"] = map[string]string{"internal/gateway": "a control"}
	if got := circle(arrows); len(got) < 3 {
		t.Errorf("a circle is not found: %q", got)
	}
}

// testOnly are packages that help tests: testenv, secretscan, testkit, and those in a folder that ends in test, such as jailtest. The
// self-test is no such thing: it is a command.
func testOnly(pkg string) bool {
	if below(pkg, []string{"internal/selftest"}) {
		return false
	}
	return below(pkg, []string{"internal/testenv", "internal/secretscan", "test/testkit"}) || strings.HasPrefix(pkg, "internal/") && strings.Contains(pkg+"/", "test/")
}

// strays says whether a package, or a test of it, imports what is for the tests of the whole program alone.
func strays(from, pkg string) bool {
	return below(pkg, []string{"test/testkit"}) && !below(from, []string{"test"})
}

func TestHelpersOfTestsStayInTests(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() || testOnly(f.folder()) {
			continue
		}
		for _, pkg := range f.imports() {
			if testOnly(pkg) || pkg == "testing" {
				t.Errorf("%s imports %s, which is for tests", f.path, pkg)
			}
		}
	}
	for _, f := range sourceFiles(t) {
		for _, pkg := range f.imports() {
			if strays(f.folder(), pkg) {
				t.Errorf("%s imports %s, which is for the tests of the whole program", f.path, pkg)
			}
		}
	}
	if !testOnly("internal/jail/jailtest") || !testOnly("internal/jail/jailtest/inside") || !testOnly("test/testkit") || testOnly("internal/jail") {
		t.Error("the check does not know a helper of tests")
	}
	if !strays("internal/jail", "test/testkit") || strays("test/jails", "test/testkit") {
		t.Error("the check does not know who the helpers of the whole program's tests are for")
	}
}

//go:build linux

package freebsd

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// said is a command that prints a text.
func said(t *testing.T, name, text string) hostcmd.Runner {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "text"), []byte(text), 0o600),
		os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexec cat "+dir+"/text\n"), 0o755))
	return hostcmd.Runner{Dir: dir}
}

func TestJailsAreReadAsJlsPrintsThem(t *testing.T) {
	got, err := (&jails{said(t, "jls", "jid=3 name=bk3x900042 path=/var/db/clawjail/clones/bk3x900042 nodying\njid=7 name=www path='/a b' dying\n")}).list(t.Context())
	want := []jailRow{{3, "bk3x900042", "/var/db/clawjail/clones/bk3x900042", false}, {7, "www", "/a b", true}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"jid=x name=a path=/ nodying\n", "jid=3 name=a path=/\n", "jid=3 name=a path=/ nodying more\n", "3 a /\n"} {
		if got, err := (&jails{said(t, "jls", text)}).list(t.Context()); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestProcessesAreReadAsPsPrintsThem(t *testing.T) {
	got, err := (&jails{said(t, "ps", "  812   1  1000  1000  1000  1000  1000  1000  3 8000 IsJ  61\n  813 812 0 0 0 0 0 0 3 0 ZJ 1\n")}).processes(t.Context(), "bk3x900042")
	want := []process{{812, 1, 1000, 1000, 1000, 1000, 1000, 1000, 3, 0x8000, "IsJ", 61 * time.Second}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if p, err := parseProcess("1 2 3"); err == nil {
		t.Errorf("%+v", p)
	}
	now := time.Unix(1000, 0)
	if p := want[0]; !p.is(jail.Process{PID: 812, Started: 940}, now) || p.is(jail.Process{PID: 812, Started: 900}, now) || p.is(jail.Process{PID: 8, Started: 940}, now) {
		t.Error("a process is not told from a later one of its number")
	}
}

func TestMountsAreReadAsMountPrintsThem(t *testing.T) {
	run := said(t, "mount", "zroot/ROOT/default\t/\tzfs\trw,nfsv4acls\t0 0\ndevfs /a/dev devfs rw 0 0\nzroot/x\t/a\tzfs\tro,nosuid 0 0\n/w\\040s\t/a/b/c\tnullfs\trw 0 0\ntmpfs /ab tmpfs rw 0 0\n")
	got, err := below(t.Context(), run, "/a")
	var points []string
	for _, m := range got {
		points = append(points, m.source+" at "+m.point)
	}
	if want := "/w s at /a/b/c, devfs at /a/dev, zroot/x at /a"; err != nil || strings.Join(points, ", ") != want || !got[2].readOnly() {
		t.Errorf("%v, %v", points, err)
	}
}

func TestRulesAreReadAsRctlPrintsThem(t *testing.T) {
	for line, want := range map[string]rule{
		"jail:a:nthr:deny=64":              {"a", "nthr", "deny", "", 64},
		"jail:a:openfiles:deny=64/process": {"a", "openfiles", "deny", "process", 64},
		"jail:a:pcpu:deny=50/jail":         {"a", "pcpu", "deny", "", 50},
	} {
		if got, ok := parseRule(line); !ok || got != want {
			t.Errorf("%s is read as %+v", line, got)
		}
	}
	for _, line := range []string{"", "user:root:nthr:deny=3", "jail:a:nthr:deny", "jail:a:nthr:deny=many"} {
		if got, ok := parseRule(line); ok {
			t.Errorf("%s is read as %+v", line, got)
		}
	}
}

func TestTheFirstSubnetThatNoRouteOverlapsIsTaken(t *testing.T) {
	const routes = "Routing tables\n\nInternet:\nDestination        Gateway            Flags         Netif Expire\n" +
		"default            192.168.1.1        UGS         em0\n10.213.4.0/24      link#3             U           wg0\n" +
		"10.214.0.0/20      link#4             U           cjk3x9\n10.214.0.1         link#4             UHS         lo0\n127.0.0.1          link#2             UH          lo0\n192.168.1.0/24     link#1             U           em0\n"
	for id, want := range map[jail.Installation]string{"zzzz": "10.213.16.0/20", "k3x9": "10.214.0.0/20"} {
		got, err := FreeSubnet(t.Context(), said(t, "netstat", routes), id, jail.DefaultSubnets())
		if err != nil || got != netip.MustParsePrefix(want) {
			t.Errorf("%s gets %s, %v", id, got, err)
		}
	}
	for _, c := range []struct {
		id     jail.Installation
		subnet string
		free   bool
	}{{"k3x9", "10.214.0.0/20", true}, {"zzzz", "10.214.0.0/20", false}, {"k3x9", "10.213.0.0/20", false}, {"zzzz", "10.213.16.0/20", true}} {
		if err := CheckSubnet(t.Context(), said(t, "netstat", routes), c.id, netip.MustParsePrefix(c.subnet)); (err == nil) != c.free {
			t.Errorf("%s for %s: %v", c.subnet, c.id, err)
		}
	}
	// What is no longer its own alone is not kept.
	taken := strings.Replace(routes, "127.0.0.1", "10.214.8.0/24      link#5             U           wg1\n127.0.0.1", 1)
	if got, err := FreeSubnet(t.Context(), said(t, "netstat", taken), "k3x9", jail.DefaultSubnets()); err != nil || got != netip.MustParsePrefix("10.213.16.0/20") {
		t.Errorf("when another route is within its own network: %s, %v", got, err)
	}
	if _, err := FreeSubnet(t.Context(), said(t, "netstat", "nonsense\n"), "zzzz", jail.DefaultSubnets()); err == nil {
		t.Error("what is not understood is taken for no routes")
	}
}

func TestOptionsReportEverythingThatIsWrong(t *testing.T) {
	err := (&Options{Installation: "9", RunDir: "run", DataDir: `/a "b"`, DevfsRuleset: -1, WorkspaceRoots: []string{"/"}}).Validate()
	for _, want := range []string{"installation id", "pool", "run_dir", "data_dir", "dataset", "devfs", "workspace_roots"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing is said of %s: %v", want, err)
		}
	}
}

func TestAJailConfRunsNothing(t *testing.T) {
	text := string((&Options{DevfsRuleset: 4711}).conf("bk3x900042", "/var/db/clawjail/clones/bk3x900042"))
	for _, never := range []string{"exec.prestart", "exec.start", "exec.poststop", "command", "allow.mount;", "ip4"} {
		if strings.Contains(text, never) {
			t.Errorf("%s is in\n%s", never, text)
		}
	}
	for _, want := range []string{"vnet.interface = \"e0b_bk3x900042\";", "securelevel = 3;", "enforce_statfs = 2;", "devfs_ruleset = 4711;", "children.max = 0;"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

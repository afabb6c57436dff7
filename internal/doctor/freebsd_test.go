//go:build unix

package doctor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail/freebsd/transcript"
)

// freebsdStandIn answers what $S/answers says: blocks "=command line", then the answer, the first line that begins with
// "!" is the status and what is said on standard error.
const freebsdStandIn = `#!/bin/sh
S=@STATE@
line="${0##*/} $*"
echo "$line" >>"$S/log"
awk -v want="$line" '/^=/ { on = ($0 == "=" want); if (on) found = 1; next } on { print } END { if (!found) print "!1 not found" }' "$S/answers" >"$S/out.$$"
status=0
while IFS= read -r text; do
	case $text in
	"!"*) rest=${text#!}; status=${rest%% *}; echo "${rest#* }" >&2 ;;
	*) printf '%s\n' "$text" ;;
	esac
done <"$S/out.$$"
rm -f "$S/out.$$"
exit $status
`

// goodFreeBSD is what the commands of a host answer that can do everything.
const goodFreeBSD = `=sysctl -n security.jail.jailed
0
=sysctl -n kern.securelevel
-1
=sysctl -n kern.osrelease
15.0-RELEASE
=sysctl -n kern.osreldate
1500068
=sysctl -n kern.racct.enable
1
=sysctl -n kern.features.vimage
1
=sysctl -n net.link.bridge.pfil_onlyip
1
=sysctl -n net.link.bridge.pfil_bridge
1
=sysctl -n net.link.bridge.pfil_member
1
=sysctl -n net.link.bridge.member_ifaddrs
0
=sysctl -n hw.physmem
8589934592
=zfs list -Hp -o name,mountpoint,mounted,origin,used -t filesystem zroot/clawjail
zroot/clawjail	none	no	-	98304
=zfs get -Hp -o value available zroot/clawjail
107374182400
=devfs rule -s 4711 show
100 hide
200 path null unhide
300 path fd/* unhide
=pfctl -s info
Status: Enabled for 0 days 00:10:00           Debug: Urgent
=pfctl -a clawjail/k3x9 -sr
pass in quick on cjk3x9 inet proto tcp from <browser_tasks> to 10.213.0.1 port = 3000 flags S/SA keep state
pass in quick on cjk3x9 inet proto tcp from <agent_jails> to 10.213.0.1 port = 3000 flags S/SA keep state
block return quick on cjk3x9 all
=pfctl -sr
anchor "clawjail/*" all
=pfctl -a clawjail/k3x9 -t browser_tasks -T show
=pfctl -a clawjail/k3x9 -t agent_jails -T show
`

type freebsdFake struct {
	*fake
	state string
}

func newFreeBSDFake(t *testing.T) *freebsdFake {
	f := &freebsdFake{newFake(t), t.TempDir()}
	f.install()
	f.Config.ZFSDataset, f.Config.TemplatesDir = "zroot/clawjail", filepath.Join(f.Root, "templates")
	f.write("templates/browser/template.json", `{"programs":{"full":{"path":"/x","version":"Chromium 142"}}}`)
	commands := t.TempDir()
	program := strings.ReplaceAll(freebsdStandIn, "@STATE@", f.state)
	for _, name := range []string{
		"zfs", "jail", "jls", "jexec", "ifconfig", "pfctl", "rctl", "mount", "umount", "mount_nullfs", "devfs", "ps", "kldstat", "sysctl", "uname", "netstat",
	} {
		if err := os.WriteFile(filepath.Join(commands, name), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.System, f.Run = systemFreeBSD, hostcmd.Runner{Dir: commands}
	f.Spawn = func(context.Context) (string, error) { return "mdo", nil }
	f.answers(goodFreeBSD)
	return f
}

func (f *freebsdFake) answers(text string) {
	if err := os.WriteFile(filepath.Join(f.state, "answers"), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *freebsdFake) check(name string) Result {
	all := freebsdTable()
	i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
	if i < 0 {
		f.t.Fatalf("there is no check %q", name)
	}
	return run(f.t.Context(), &exam{f.Options, f.Host.complete()}, all[i:i+1]).Checks[0]
}

func TestAFreeBSDHostThatCanDoEverything(t *testing.T) {
	f := newFreeBSDFake(t)
	r := Run(t.Context(), f.Options, f.Host)
	for i, c := range freebsdTable() {
		want := OK
		if c.name == "browser" {
			want = Warn // it has no sandbox of its own there, and that is said each time
		}
		if got := r.Checks[i]; got.Name != c.name || got.Status != want || got.Message == "" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if !r.OK {
		t.Error("the report is not ok")
	}
}

func TestWhatAFreeBSDHostLacksIsSaid(t *testing.T) {
	swap := func(old, new string) func(*freebsdFake) {
		return func(f *freebsdFake) {
			if !strings.Contains(goodFreeBSD, old) {
				t.Fatalf("no answer has %q", old)
			}
			f.answers(strings.ReplaceAll(goodFreeBSD, old, new))
		}
	}
	for _, c := range []struct {
		check        string
		away         func(*freebsdFake)
		want         Status
		says, advise string
	}{
		{"privileges", func(f *freebsdFake) { f.UID = 1001 }, Skip, "user 1001", "sudo"},
		{"privileges", swap("jailed\n0", "jailed\n1"), Fail, "root of a jail", "host"},
		{"privileges", swap("kern.securelevel\n-1", "kern.securelevel\n3"), Fail, "securelevel 3", "kern_securelevel"},
		{"kernel", swap("1500068", "1402000"), Fail, "too old", "15.0"},
		{"zfs_dataset", func(f *freebsdFake) { f.Config.ZFSDataset = "" }, Fail, "no dataset is configured", "zfs_dataset"},
		{"zfs_dataset", swap("zroot/clawjail\tnone\tno\t-\t98304", "!1 cannot open 'zroot/clawjail': dataset does not exist"), Fail, "no dataset zroot/clawjail", "zfs create"},
		{"zfs_dataset", swap("107374182400", "1073741824"), Warn, "1.0 GiB", "free"},
		{"resource_limits", swap("kern.racct.enable\n1", "kern.racct.enable\n0"), Fail, "switched off", "loader.conf"},
		{"resource_limits", swap("kern.racct.enable\n1", "kern.racct.enable\n!1 sysctl: unknown oid 'kern.racct.enable'"), Fail, "no resource limits", "RCTL"},
		{"memory", swap("8589934592", "1073741824"), Warn, "1.0 GiB", "limits.memory"},
		{"memory", swap("8589934592", "much"), Warn, "no number", ""},
		{"vnet", swap("vimage\n1", "vimage\n0"), Fail, "network of their own", "VIMAGE"},
		{"devices", swap("100 hide\n200 path null unhide\n300 path fd/* unhide\n", ""), Fail, "sees every device", "devfs.rules"},
		{"devices", swap("100 hide\n", ""), Fail, "does not begin", "devfs.rules"},
		{"devices", swap("path fd/* unhide", "path bpf* unhide"), Warn, "bpf", "devfs.rules"},
		{"pf", swap("Status: Enabled", "Status: Disabled"), Fail, "filters nothing", "pf_enable"},
		{"pf_anchor", swap("block return quick on cjk3x9 all\n", ""), Fail, "has no rules", "pf-anchor"},
		{"pf_anchor", swap("anchor \"clawjail/*\" all\n", "pass all\n"), Fail, "never comes", "pf-anchor"},
		{"pf_anchor", swap("from <agent_jails> to", "from any to"), Fail, "in no table", "pf-anchor"},
		{"pf_anchor", swap("block return quick on cjk3x9", "block return quick on em0"), Fail, "not for the bridge", "pf-anchor"},
		{"pf_anchor", swap("=pfctl -a clawjail/k3x9 -t agent_jails -T show\n", "=pfctl -a clawjail/k3x9 -t agent_jails -T show\n!1 pfctl: Table does not exist.\n"), Fail, "no table agent_jails", "pf-anchor"},
		{"bridge_filter", swap("pfil_bridge\n1", "pfil_bridge\n0"), Warn, "net.link.bridge.pfil_bridge are 0", "sysctl"},
		{"bridge_filter", swap("member_ifaddrs\n0", "member_ifaddrs\n1"), Fail, "addresses of its members", "member_ifaddrs=0"},
		{"browser", func(f *freebsdFake) { f.Config.TemplatesDir = "/nowhere" }, Skip, "no template", "base.txz"},
		{"commands", func(f *freebsdFake) { f.Run.Dir = f.state }, Fail, "no zfs, jail", "base system"},
		{"spawn_mode", func(f *freebsdFake) {
			f.Spawn = func(context.Context) (string, error) { return "sudo", errPlain }
		}, Warn, "mode sudo", ""},
	} {
		f := newFreeBSDFake(t)
		c.away(f)
		r := f.check(c.check)
		if r.Status != c.want || !strings.Contains(r.Message, c.says) || !strings.Contains(r.Hint, c.advise) {
			t.Errorf("%s without %q: %+v", c.check, c.says, r)
		}
	}
}

func TestRecordingShowsNothingOfTheHostAndRemovesWhatItMade(t *testing.T) {
	f := newFreeBSDFake(t)
	dir := t.TempDir()
	var out bytes.Buffer
	o := RecordOptions{Run: f.Run, Dataset: "tank/secretpool", Dir: dir, HostName: "vault.example.org", Now: func() time.Time { return time.Unix(0, 0) }, To: &out}
	f.answers("=uname -srm\nFreeBSD 15.0-RELEASE amd64\n=jls -d -n -q jid name path dying\njid=1 name=mail path=/mail nodying\njid=2 name=cjdoctor path=/x nodying\n" +
		"=ifconfig -l\nem0 igb0 lo0 epair0a\n=mount -p\ntank/home /home zfs rw 0 0\ntank/secretpool/x /x zfs rw 0 0\n=ifconfig epair create description clawjail cjdoctor\nepair3a\n" +
		"=ifconfig epair3a name e0a_cjdoctor\ne0a_cjdoctor\n=ifconfig e0a_cjdoctor\ne0a_cjdoctor: flags=8843\n\tether 02:aa:bb:cc:dd:ee\n\tinet 10.9.8.7 netmask 0xffffff00\n\tinet6 fe80::1%e0a prefixlen 64\n" +
		"=kldstat -q -m clawjail_none\n!1 vault: vault.example.org\n=pfctl -a clawjail/doctor -t browser_tasks -T add 192.0.2.1\n!0 1/1 addresses added.\n" +
		"=rctl -a jail:cjdoctor:maxproc:deny=5\n=jail -f X -c cjdoctor\n")
	if err := Record(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"tank", "secretpool", "vault", "example.org", "mail", "em0", "igb0", "10.9.8.7", "02:aa:bb", "fe80", dir} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("it shows %q:\n%s", secret, out.String())
		}
	}
	r, err := transcript.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := r.All()
	if err != nil || len(entries) < 30 || r.Header.System != "FreeBSD 15.0-RELEASE amd64" {
		t.Fatalf("%d entries of %q, %v", len(entries), r.Header.System, err)
	}
	log, err := os.ReadFile(filepath.Join(f.state, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for made, removed := range map[string]string{
		"ifconfig epair3a name": "ifconfig e0a_cjdoctor destroy", "-T add": "-T kill",
	} {
		if strings.Contains(string(log), made) && !strings.Contains(string(log), removed) {
			t.Errorf("what %q made is not removed by %q:\n%s", made, removed, log)
		}
	}

	// The dataset could not be made above, so nothing else of the kind was tried.
	if strings.Contains(string(log), "epair create") {
		t.Error("a try goes on although its first step failed")
	}
}

func TestRecordingUndoesWhatItMadeAlsoWhenItIsInterrupted(t *testing.T) {
	f := newFreeBSDFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &recorder{RecordOptions: RecordOptions{Run: f.Run, Dataset: "zroot/clawjail", Dir: t.TempDir()}, name: "doctorx"}
	f.answers("=zfs create -o mountpoint=" + r.Dir + "/doctorx zroot/clawjail/doctorx\n=zfs snapshot zroot/clawjail/doctorx@clawjail\n")
	var out bytes.Buffer
	var err error
	if r.to, err = transcript.NewWriter(&stopAfter{to: &out, n: 2, stop: cancel}, "FreeBSD 15", time.Now()); err != nil {
		t.Fatal(err)
	}
	r.try(ctx)
	log, err := os.ReadFile(filepath.Join(f.state, "log"))
	if err != nil || !strings.Contains(string(log), "zfs destroy zroot/clawjail/doctorx\n") {
		t.Errorf("%v:\n%s", err, log)
	}
	if o := (RecordOptions{}); Record(t.Context(), o) == nil {
		t.Error("a recording without a dataset begins")
	}
	r.to, err = transcript.NewWriter(&out, "FreeBSD 15", time.Now())
	if r.err = errors.Join(err, errPlain); r.err == nil {
		t.Fatal("no error")
	}
	r.try(t.Context())
}

// stopAfter calls stop after some writes.
type stopAfter struct {
	to   *bytes.Buffer
	n    int
	stop func()
}

func (s *stopAfter) Write(p []byte) (int, error) {
	if s.n--; s.n == 0 {
		s.stop()
	}
	return s.to.Write(p)
}

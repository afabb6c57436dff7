package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// rcSubr does with a script what rc.subr(8) does with it, as far as these scripts need: a script that is not enabled does
// nothing, what is required must be there, `start` runs the hook and the command, the others ask the pid file.
const rcSubr = `
load_rc_config() { eval "$RC_CONF"; }
run_rc_command() {
	eval enabled=\$$rcvar
	case $enabled in [Yy][Ee][Ss]) ;; *) echo "$name is not enabled"; return 0 ;; esac
	for file in $required_files; do
		[ -r "$ROOT$file" ] || { echo "$file is not readable."; return 1; }
	done
	case $1 in
	start) $start_precmd; echo "$command $command_args" ;;
	stop) echo "TERM $(cat "$ROOT$pidfile")" ;;
	status) [ -s "$ROOT$pidfile" ] && echo "$name is running as pid $(cat "$ROOT$pidfile")." ;;
	*) case " $extra_commands " in *" $1 "*) echo "HUP $(cat "$ROOT$pidfile")" ;; *) return 1 ;; esac ;;
	esac
}
install() { echo "install $*"; }
`

// rc runs an rc.d script beside that rc.subr.
func rc(t *testing.T, script, verb, conf string, change func(string) string) string {
	t.Helper()
	dir := t.TempDir()
	text := strings.ReplaceAll(packaging(t, "freebsd", "rc.d", script), "/etc/rc.subr", filepath.Join(dir, "rc.subr"))
	for path, content := range map[string]string{
		"rc.subr": rcSubr, "script": change(text), "usr/local/bin/clawjail": "", "etc/clawjail/clawjail.yml": "",
		"var/run/clawjail.pid": "42", "var/run/clawjail_hostd.pid": "41",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "sh"), "-u", filepath.Join(dir, "script"), verb)
	cmd.Env = []string{"RC_CONF=" + conf, "ROOT=" + dir, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

func TestRcScriptsRunTheDaemons(t *testing.T) {
	same := func(text string) string { return text }
	const hostd = "/usr/sbin/daemon -H -r -R 1 -t clawjail_hostd -P /var/run/clawjail_hostd.pid -o /var/log/clawjail/hostd.log " +
		"/usr/local/bin/clawjail hostd --config /etc/clawjail/clawjail.yml"
	const serve = "/usr/sbin/daemon -H -r -R 1 -t clawjail -u clawjail -P /var/run/clawjail.pid -o /var/log/clawjail/clawjail.log " +
		"/usr/local/bin/clawjail serve --config /etc/clawjail/clawjail.yml"
	for _, c := range []struct{ script, verb, conf, want string }{
		{"clawjail_hostd", "start", `clawjail_hostd_enable="YES"`, "install -d -m 0755 -o root -g wheel /var/log/clawjail\n" + hostd},
		{"clawjail_hostd", "start", ``, "clawjail_hostd is not enabled"},
		{"clawjail_hostd", "start", `clawjail_hostd_enable=YES clawjail_hostd_config=/nowhere.yml`, "/nowhere.yml is not readable.\nexit status 1"},
		{"clawjail_hostd", "start", `clawjail_hostd_enable=yes clawjail_hostd_args=--x`, "install -d -m 0755 -o root -g wheel /var/log/clawjail\n" + hostd + " --x"},
		{"clawjail_hostd", "stop", `clawjail_hostd_enable=YES`, "TERM 41"},
		{"clawjail_hostd", "reload", `clawjail_hostd_enable=YES`, "HUP 41"},
		{"clawjail_hostd", "status", `clawjail_hostd_enable=YES`, "clawjail_hostd is running as pid 41."},
		{"clawjail", "start", `clawjail_enable=YES`, "install -d -m 0755 -o root -g wheel /var/log/clawjail\n" +
			"install -m 0640 -o clawjail -g clawjail /dev/null /var/log/clawjail/clawjail.log\n" + serve},
		{"clawjail", "stop", `clawjail_enable=YES`, "TERM 42"},
		{"clawjail", "status", `clawjail_enable=YES`, "clawjail is running as pid 42."},
		{"clawjail", "other", `clawjail_enable=YES`, "exit status 1"},
	} {
		if got := strings.TrimSpace(rc(t, c.script, c.verb, c.conf, same)); got != c.want {
			t.Errorf("%s %s with %q:\n got %s\nwant %s", c.script, c.verb, c.conf, got, c.want)
		}
	}
	// The user of the control plane must not be in the variable that makes rc.subr run daemon(8) itself as that user.
	for _, script := range []string{"clawjail", "clawjail_hostd"} {
		text := packaging(t, "freebsd", "rc.d", script)
		if regexp.MustCompile(`(?m)^[^#]*\bclawjail(_hostd)?_user\b`).MatchString(text) {
			t.Errorf("%s sets a variable that rc.subr takes for its own", script)
		}
		for _, want := range []string{"# PROVIDE: " + script + "\n", "# KEYWORD: shutdown\n", `rcvar="` + script + `_enable"`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q", script, want)
			}
		}
	}
	withoutHook := func(text string) string { return strings.ReplaceAll(text, "-u ${clawjail_account} ", "") }
	if got := rc(t, "clawjail", "start", `clawjail_enable=YES`, withoutHook); strings.Contains(got, serve) {
		t.Error("a control plane that runs as root is not seen")
	}
}

// pfFlaws reads a file of rules the way pfctl(8) does, as far as ours go, and says what does not promise what it must.
func pfFlaws(text string, port string) (out []string) {
	macros := map[string]string{}
	used := map[string]bool{}
	var tables, rules []string
	rule := regexp.MustCompile(`^(pass|block return) (in )?(quick) on (\S+) (.*)$`)
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if m := regexp.MustCompile(`^([a-z]+) = "([^"]+)"$`).FindStringSubmatch(line); m != nil {
			macros[m[1]] = m[2]
			continue
		}
		for _, m := range regexp.MustCompile(`\$([a-z]+)`).FindAllStringSubmatch(line, -1) {
			if used[m[1]] = true; macros[m[1]] == "" {
				out = append(out, "no macro "+m[1])
			}
		}
		if m := regexp.MustCompile(`^table <([a-z_]+)> persist$`).FindStringSubmatch(line); m != nil {
			tables = append(tables, m[1])
			continue
		}
		if !rule.MatchString(line) {
			out = append(out, "not understood: "+line)
			continue
		}
		rules = append(rules, line)
	}
	for name := range macros {
		if !used[name] {
			out = append(out, "unused macro "+name)
		}
	}
	want := []string{string(jail.TableBrowsers), string(jail.TableAgents)}
	if !slices.Equal(tables, want) {
		out = append(out, "tables "+strings.Join(tables, ","))
	}
	var pass []string
	for _, table := range want {
		pass = append(pass, "pass in quick on $bridge inet proto tcp from <"+table+"> to $gateway port $port flags S/SA keep state")
	}
	if !slices.Equal(rules, append(pass, "block return quick on $bridge all")) {
		out = append(out, "rules:\n"+strings.Join(rules, "\n"))
	}
	if macros["port"] != port {
		out = append(out, "port "+macros["port"])
	}
	return out
}

func TestPfRulesLetNothingThroughButTheGateway(t *testing.T) {
	text := packaging(t, "freebsd", "clawjail.pf.conf")
	port := strconv.Itoa(int(config.Default().Gateway.Port))
	if flaws := pfFlaws(text, port); len(flaws) > 0 {
		t.Errorf("clawjail.pf.conf: %s", strings.Join(flaws, "; "))
	}
	for name, change := range map[string][2]string{
		"a table that goes when it is empty": {"table <agent_jails> persist", "table <agent_jails>"},
		"no table":                           {"table <agent_jails> persist\n", ""},
		"no block":                           {"block return quick on $bridge all\n", ""},
		"a drop":                             {"block return quick", "block drop quick"},
		"only one direction":                 {"block return quick", "block return in quick"},
		"another rule":                       {"block return quick", "pass in quick on $bridge proto udp to any port 53\nblock return quick"},
		"UDP":                                {"proto tcp from <browser_tasks>", "proto { tcp udp } from <browser_tasks>"},
		"every port":                         {"to $gateway port $port flags", "to $gateway flags"},
		"a macro that is not there":          {"gateway = \"10.213.0.1\"\n", ""},
	} {
		broken := strings.Replace(text, change[0], change[1], 1)
		if broken == text || len(pfFlaws(broken, port)) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
}

func TestPfAnchorIsWrittenForThisInstallation(t *testing.T) {
	top, dir := testenv.Repository(t), t.TempDir()
	out := filepath.Join(dir, "out.conf")
	script := func(args ...string) (string, error) {
		args = append([]string{filepath.Join(top, "packaging/freebsd/pf-anchor.sh"), "-d", dir, "-o", out,
			"-t", filepath.Join(top, "packaging/freebsd/clawjail.pf.conf")}, args...)
		said, err := exec.CommandContext(t.Context(), testenv.Tool(t, "sh"), args...).CombinedOutput()
		return string(said), err
	}
	if said, err := script(); err == nil || !strings.Contains(said, "hint: ") {
		t.Errorf("without an installation: %v, %s", err, said)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "installation.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{`{}`, `{"id":"a;b","subnet":"10.1.0.0/20"}`, `{"id":"q7w2","subnet":"10.1.0.5/20"}`, `{"id":"q7w2"}`} {
		write(bad)
		if said, err := script(); err == nil {
			t.Errorf("%s is taken: %s", bad, said)
		}
	}
	write(`{"id":"q7w2","subnet":"10.99.16.0/20","created":"2026-01-02T03:04:05Z"}`)
	said, err := script("-p", "3001")
	if err != nil || !strings.Contains(said, "load anchor \"clawjail/q7w2\" from \""+out+"\"\n") || !strings.Contains(said, "\nanchor \"clawjail/*\"\n") {
		t.Errorf("%v: %s", err, said)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bridge = \"cjq7w2\"\n", "gateway = \"10.99.16.1\"\n", "port = \"3001\"\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "k3x9") || len(pfFlaws(string(text), "3001")) > 0 {
		t.Errorf("%v in\n%s", pfFlaws(string(text), "3001"), text)
	}
}

func TestDevicesOfJailsAreFew(t *testing.T) {
	text := packaging(t, "freebsd", "devfs.rules")
	var got []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			got = append(got, line)
		}
	}
	want := []string{"[clawjail=4711]", "add hide"}
	for _, name := range []string{"null", "zero", "random", "urandom", "fd", "'fd/*'", "stdin", "stdout", "stderr"} {
		want = append(want, "add path "+name+" unhide")
	}
	if !slices.Equal(got, want) {
		t.Errorf("devfs.rules:\n%s", strings.Join(got, "\n"))
	}
}

func TestPackageForFreeBSDHasWhatItSays(t *testing.T) {
	top, dir := testenv.Repository(t), t.TempDir()
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"clawjail", "clawjail-spawn"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("program"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out")
	make := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "sh"), append([]string{filepath.Join(top, "packaging/freebsd/make-pkg.sh")}, args...)...)
		cmd.Env = append(os.Environ(), "CLAWJAIL_PROGRAMS="+programs)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	if said, err := make("1.2.3", "arm64", out); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	manifest, err := os.ReadFile(filepath.Join(out, "MANIFEST"))
	if err != nil || !strings.Contains(string(manifest), `version: "1.2.3"`) || !strings.Contains(string(manifest), `abi: "FreeBSD:*:aarch64"`) || strings.Contains(string(manifest), "@") && regexp.MustCompile(`@[A-Z]+@`).Match(manifest) {
		t.Errorf("%v:\n%s", err, manifest)
	}
	plist, err := os.ReadFile(filepath.Join(out, "plist"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(plist)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "@") {
			_, line, _ = strings.Cut(line, " ")
		}
		listed[line] = true
		if _, err := os.Stat(filepath.Join(out, "stage/usr/local", line)); err != nil {
			t.Errorf("plist names %s, which is not staged", line)
		}
	}
	err = filepath.WalkDir(filepath.Join(out, "stage/usr/local"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(filepath.Join(out, "stage/usr/local"), path)
		if !listed[name] {
			t.Errorf("%s is staged and not in plist", name)
		}
		if info, err := entry.Info(); err != nil || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, bad := range [][]string{{}, {"1 2"}, {"1", "mips"}} {
		if said, err := make(bad...); err == nil {
			t.Errorf("%q is taken: %s", bad, said)
		}
	}
}

func TestScriptsForFreeBSDParse(t *testing.T) {
	top := testenv.Repository(t)
	for _, name := range []string{"pf-anchor.sh", "make-pkg.sh", "rc.d/clawjail", "rc.d/clawjail_hostd"} {
		file := filepath.Join(top, "packaging/freebsd", name)
		if out, err := exec.CommandContext(t.Context(), testenv.Tool(t, "sh"), "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", name, out)
		}
		executable(t, file)
	}
}

// Files and keys that docs/freebsd.md names are in the package and in the configuration.
func TestPageOfFreeBSDNamesWhatThereIs(t *testing.T) {
	top := testenv.Repository(t)
	page := documents(t)["docs/freebsd.md"]
	found := 0
	for _, m := range regexp.MustCompile(`packaging/freebsd/[a-z.-]+[a-z]|/usr/local/[a-zA-Z0-9./_-]*clawjail[a-zA-Z0-9./_-]*[a-z]`).FindAllString(page, -1) {
		found++
		if rest, ours := strings.CutPrefix(m, "packaging/"); ours {
			if _, err := os.Stat(filepath.Join(top, "packaging", rest)); err != nil {
				t.Errorf("there is no %s", m)
			}
			continue
		}
		place := strings.TrimPrefix(m, "/usr/local/")
		// The anchor's file is written by pf-anchor.
		if !strings.Contains(packaging(t, "freebsd", "plist"), place) && place != "etc/clawjail/clawjail.pf.conf" {
			t.Errorf("the package has no %s", m)
		}
	}
	scripts := packaging(t, "freebsd", "rc.d", "clawjail") + packaging(t, "freebsd", "rc.d", "clawjail_hostd")
	for _, m := range regexp.MustCompile(`\bclawjail(?:_hostd)?_[a-z]+\b`).FindAllString(page, -1) {
		if found++; m != "clawjail_hostd" && !strings.Contains(scripts, m) {
			t.Errorf("no rc.d script has %s", m)
		}
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(page)
	if block == nil || found < 15 {
		t.Fatalf("%d names were found, and a configuration: %v", found, block != nil)
	}
	file := filepath.Join(t.TempDir(), "clawjail.yml")
	if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(file); err != nil {
		t.Errorf("its configuration: %v", err)
	}
}

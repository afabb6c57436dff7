package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	systemFreeBSD = "freebsd"
	// oldestFreeBSD is 15.0, as kern.osreldate has it: the first whose bridges can be kept from taking frames for their members
	// past the rules of the firewall (net.link.bridge.member_ifaddrs).
	oldestFreeBSD = 1500000
	// deviceRules is the ruleset of packaging/freebsd/devfs.rules.
	deviceRules = "4711"
)

// freebsdTable lists the checks of a FreeBSD host. Their commands only look; what changes something is in a recording.
func freebsdTable() []check {
	return []check{
		{"privileges", false, freebsdPrivileges},
		{"kernel", false, freebsdKernel},
		{"configuration", false, configuration},
		{"user", false, controlUser},
		{"uid_range", false, uidRange},
		{"uid_1000", false, agentUser},
		{"memory", false, freebsdMemory},
		{"disk_data", false, diskData},
		{"disk_run", false, diskRun},
		{"commands", false, freebsdCommands},
		{"zfs_dataset", false, zfsDataset},
		{"resource_limits", false, resourceLimits},
		{"vnet", false, vnet},
		{"devices", true, devices},
		{"pf", true, packetFilter},
		{"pf_anchor", true, anchor},
		{"subnet", false, subnet},
		{"bridge_filter", false, bridgeFilter},
		{"browser", true, freebsdBrowser},
		{"spawn_mode", false, spawnMode},
		{"workspace_roots", false, workspaceRoots},
		{"resolver", false, resolver},
		{"keys", true, keys},
		{"certificate", false, certificate},
		{"host_daemon", false, hostDaemon},
		{"api", false, apiHealth},
		{"orphans", true, orphans},
	}
}

// sysctl is a variable of the kernel; empty when it has none of the name.
func (e *exam) sysctl(ctx context.Context, name string) (string, error) {
	out, err := e.Run.Run(ctx, "sysctl", "-n", name)
	if hostcmd.Says(err, "unknown oid") {
		return "", nil
	}
	return strings.TrimSpace(out), err
}

func freebsdPrivileges(ctx context.Context, e *exam) Result {
	if e.UID != 0 {
		return skipped("running as user %d: what needs root is left out", e.UID).hint("sudo clawjail doctor").fact("uid", e.UID)
	}
	jailed, err := e.sysctl(ctx, "security.jail.jailed")
	if err != nil {
		return failed(err)
	}
	if jailed == "1" {
		return fails("this is root of a jail").hint("run clawjail on the host: a jail has no pf, and no ZFS of its own, by default")
	}
	level, err := e.sysctl(ctx, "kern.securelevel")
	if err != nil {
		return failed(err)
	}
	// security(7): from level 3 on the rules of packet filters cannot be changed, and their tables belong to them.
	if n, err := strconv.Atoi(level); err == nil && n >= 3 {
		return fails("the host is at securelevel %d, where pf's tables cannot be changed", n).fact("securelevel", n).
			hint("set kern_securelevel to 2 or less in /etc/rc.conf, and reboot")
	}
	return fine("root of the host")
}

func freebsdKernel(ctx context.Context, e *exam) Result {
	release, err := e.sysctl(ctx, "kern.osrelease")
	if err != nil {
		return failed(err)
	}
	text, err := e.sysctl(ctx, "kern.osreldate")
	if err != nil {
		return failed(err)
	}
	date, err := strconv.Atoi(text)
	if err != nil {
		return warning("the kernel says %q of its age, which is no number", text)
	}
	if date < oldestFreeBSD {
		return fails("FreeBSD %s is too old", release).hint("update to 15.0 or later: bridges of earlier systems take frames past the rules of the firewall").fact("release", release)
	}
	return fine("FreeBSD %s", release).fact("release", release).fact("osreldate", date)
}

// freebsdMemory looks at all the memory: what is free tells little where ZFS keeps the rest for files, and gives it back.
func freebsdMemory(ctx context.Context, e *exam) Result {
	text, err := e.sysctl(ctx, "hw.physmem")
	if err != nil {
		return failed(err)
	}
	total, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return warning("the kernel says %q of its memory, which is no number", text)
	}
	one := uint64(max(e.Config.Limits.Memory, 0))
	if total < 2*one {
		return warning("%s memory are there; one browser may use %s", human(total), human(one)).fact("total_bytes", total).hint("lower limits.memory")
	}
	return fine("%s memory are there; one browser may use %s", human(total), human(one)).fact("total_bytes", total)
}

// freebsdCommands are those of the base system that jails are made with.
func freebsdCommands(_ context.Context, e *exam) Result {
	var missing []string
	for _, name := range []string{"zfs", "jail", "jls", "jexec", "ifconfig", "pfctl", "rctl", "mount", "umount", "mount_nullfs", "devfs", "ps", "kldstat", "sysctl", "netstat"} {
		if _, err := e.Run.Path(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fails("there is no %s", strings.Join(missing, ", ")).fact("missing", missing).
			hint("they belong to the base system; where that is made of packages, some of them are not installed")
	}
	return fine("the commands that jails are made with are there")
}

func zfsDataset(ctx context.Context, e *exam) Result {
	name := e.Config.ZFSDataset
	if name == "" {
		return fails("no dataset is configured").hint("zfs create -o mountpoint=none zroot/clawjail, and zfs_dataset: zroot/clawjail in the configuration")
	}
	_, err := e.Run.Run(ctx, "zfs", "list", "-Hp", "-o", "name,mountpoint,mounted,origin,used", "-t", "filesystem", name)
	if hostcmd.Says(err, "dataset does not exist") {
		return fails("there is no dataset %s", name).hint("zfs create -o mountpoint=none %s", name).fact("dataset", name)
	}
	if err != nil {
		return failed(err)
	}
	out, err := e.Run.Run(ctx, "zfs", "get", "-Hp", "-o", "value", "available", name)
	if err != nil {
		return failed(err)
	}
	free, err := strconv.ParseUint(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return warning("zfs says %q of what is free in %s", strings.TrimSpace(out), name)
	}
	r := fine("templates and clones are beneath %s, with %s free", name, human(free))
	if free < minData {
		r = warning("%s are free in %s, less than %s", human(free), name, human(minData)).hint("free some space, or raise the dataset's quota")
	}
	return r.fact("dataset", name).fact("free_bytes", free)
}

func resourceLimits(ctx context.Context, e *exam) Result {
	switch value, err := e.sysctl(ctx, "kern.racct.enable"); {
	case err != nil:
		return failed(err)
	case value == "":
		return fails("the kernel has no resource limits").hint("use a kernel with the options RACCT and RCTL, such as GENERIC")
	case value != "1":
		return fails("resource limits are switched off").hint("put kern.racct.enable=1 into /boot/loader.conf, and reboot")
	}
	return fine("resource limits (rctl) are on")
}

func vnet(ctx context.Context, e *exam) Result {
	switch value, err := e.sysctl(ctx, "kern.features.vimage"); {
	case err != nil:
		return failed(err)
	case value != "1":
		return fails("the kernel gives jails no network of their own").hint("use a kernel with the option VIMAGE, such as GENERIC")
	}
	return fine("jails can have a network of their own (VNET)")
}

// devices looks for the ruleset, and that it begins with hiding everything.
func devices(ctx context.Context, e *exam) Result {
	const hint = "append /usr/local/share/examples/clawjail/devfs.rules to /etc/devfs.rules, then: service devfs restart"
	out, err := e.Run.Run(ctx, "devfs", "rule", "-s", deviceRules, "show")
	if err != nil {
		return failed(err)
	}
	var rules []string
	for line := range strings.Lines(out) {
		// Each rule has its number in front (devfs(8)).
		_, rule, _ := strings.Cut(strings.TrimSpace(line), " ")
		if rule != "" {
			rules = append(rules, strings.TrimSpace(rule))
		}
	}
	if len(rules) == 0 {
		return fails("there is no devfs ruleset %s, and a jail without rules sees every device", deviceRules).hint(hint)
	}
	if rules[0] != "hide" {
		return fails("devfs ruleset %s does not begin with hiding everything, but with: %s", deviceRules, rules[0]).hint(hint)
	}
	for _, rule := range rules[1:] {
		if strings.Contains(rule, "bpf") || strings.Contains(rule, "include") || !strings.HasPrefix(rule, "path ") {
			return warning("devfs ruleset %s shows more than clawjail's: %s", deviceRules, rule).hint(hint)
		}
	}
	return fine("devfs ruleset %s hides everything but %d names", deviceRules, len(rules)-1).fact("rules", rules)
}

func packetFilter(ctx context.Context, e *exam) Result {
	const hint = "sysrc pf_enable=YES && service pf start"
	out, err := e.Run.Run(ctx, "pfctl", "-s", "info")
	if err != nil {
		return fails("pf does not answer: %v", err).hint(hint)
	}
	if !strings.HasPrefix(out, "Status: Enabled") {
		return fails("pf is loaded and filters nothing").hint(hint)
	}
	return fine("pf is enabled")
}

// anchor looks for the rules of the installation, that pf comes to them, and for the tables.
func anchor(ctx context.Context, e *exam) Result {
	in, err := e.installed()
	if errors.Is(err, fs.ErrNotExist) {
		return skipped("the host daemon has not made an installation yet, whose id the rules need").hint("service clawjail_hostd start")
	}
	if err != nil {
		return failed(err)
	}
	name := "clawjail/" + string(in.ID)
	const hint = "/usr/local/libexec/clawjail/pf-anchor, and put the two lines that it shows into /etc/pf.conf; then: service pf reload"
	out, err := e.Run.Run(ctx, "pfctl", "-a", name, "-sr")
	if failure := (*hostcmd.Failure)(nil); errors.As(err, &failure) {
		return fails("the anchor %s has no rules: %v", name, err).hint(hint) // pfctl(8) refuses to show an anchor that is not there
	}
	if err != nil {
		return failed(err)
	}
	var passes, blocks int
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case !strings.Contains(line, " on cj"+string(in.ID)+" "):
			return fails("a rule of the anchor %s is not for the bridge cj%s: %s", name, in.ID, strings.TrimSpace(line)).hint(hint)
		case words[0] == "pass":
			if passes++; !strings.Contains(line, " quick ") || !strings.Contains(line, "<"+string(jail.TableBrowsers)+">") && !strings.Contains(line, "<"+string(jail.TableAgents)+">") {
				return fails("a rule of the anchor %s lets something pass that is in no table of clawjail's: %s", name, strings.TrimSpace(line)).hint(hint)
			}
		case words[0] == "block":
			blocks++
		}
	}
	if passes == 0 || blocks == 0 {
		return fails("the anchor %s has no rules of clawjail's", name).hint(hint)
	}
	main, err := e.Run.Run(ctx, "pfctl", "-sr")
	if err != nil {
		return failed(err)
	}
	if !strings.Contains(main, `anchor "clawjail/*"`) && !strings.Contains(main, `anchor "`+name+`"`) {
		return fails("the rules of %s are loaded, and pf never comes to them", name).hint(hint)
	}
	for _, table := range []jail.Table{jail.TableBrowsers, jail.TableAgents} {
		if _, err := e.Run.Run(ctx, "pfctl", "-a", name, "-t", string(table), "-T", "show"); err != nil {
			return fails("the anchor %s has no table %s: %v", name, table, err).hint(hint)
		}
	}
	return fine("the rules and tables of %s are there", name).fact("anchor", name)
}

// bridgeFilter looks at what if_bridge(4) lets past pf.
func bridgeFilter(ctx context.Context, e *exam) Result {
	facts, off := Facts{}, []string{}
	for _, name := range []string{"pfil_onlyip", "pfil_bridge", "pfil_member"} {
		value, err := e.sysctl(ctx, "net.link.bridge."+name)
		if err != nil {
			return failed(err)
		}
		if facts[name] = value; value == "0" {
			off = append(off, "net.link.bridge."+name)
		}
	}
	member, err := e.sysctl(ctx, "net.link.bridge.member_ifaddrs")
	if err != nil {
		return failed(err)
	}
	if facts["member_ifaddrs"] = member; member == "1" {
		return fails("a bridge takes frames for the addresses of its members as the host's own (net.link.bridge.member_ifaddrs is 1), and rules for the bridge " +
			"do not see those").facts(facts).hint("sysctl net.link.bridge.member_ifaddrs=0, and the same line in /etc/sysctl.conf")
	}
	if facts["pfil_onlyip"] == "" {
		return skipped("if_bridge is not loaded yet, so its settings cannot be read").hint("kldload if_bridge")
	}
	if len(off) > 0 {
		return warning("%s are 0: frames between members of a bridge pass without pf; that jails do not see each other then rests on "+
			"their ports being private alone", strings.Join(off, ", ")).facts(facts).hint("sysctl %s=1, and the same line in /etc/sysctl.conf", strings.Join(off, "=1 "))
	}
	return fine("frames on bridges pass pf, and only IP and ARP pass").facts(facts)
}

// freebsdBrowser looks for the template. That its browser has no sandbox of its own here is said each time: it is the one
// thing in which this platform is weaker.
func freebsdBrowser(_ context.Context, e *exam) Result {
	data, err := os.ReadFile(filepath.Join(e.Config.TemplatesDir, "browser", "template.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return skipped("there is no template with a browser yet").hint("clawjail template build browser --from base.txz")
	}
	if err != nil {
		return e.failed(err)
	}
	var t struct {
		Programs map[string]struct {
			Version string `json:"version"`
		} `json:"programs"`
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return fails("the description of the template browser is damaged").hint("clawjail template build browser --replace")
	}
	for _, name := range []string{"shell", "full"} {
		if p, ok := t.Programs[name]; ok {
			return warning("%s runs without a sandbox of its own on FreeBSD: the jail is the only wall around a page", p.Version).
				fact("version", p.Version).hint("docs/freebsd.md says what that means")
		}
	}
	return fails("the template browser has no browser").hint("clawjail template build browser --replace")
}

func spawnMode(ctx context.Context, e *exam) Result {
	if e.Spawn == nil {
		return skipped("nothing is spawned here without the host daemon")
	}
	mode, err := e.Spawn(ctx)
	if err != nil {
		r := warning("programs cannot be spawned without the host daemon (mode %s): %v", mode, err).fact("mode", mode)
		if p, ok := problem.As(err); ok {
			r = r.hint("%s", p.Hint).fact("code", p.Code)
		}
		if errors.Is(err, exec.ErrNotFound) {
			r = r.hint("FreeBSD 14.2 and later have mdo(1); or set CLAWJAIL_PRIV_MODE")
		}
		return r
	}
	return fine("programs can be spawned without the host daemon, with the privilege mode %s", mode).fact("mode", mode)
}

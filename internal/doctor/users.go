package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
)

// configuration says whether the file is valid, and as root whether the host daemon would believe it.
func configuration(_ context.Context, e *exam) Result {
	if e.ConfigErr != nil {
		r := e.failed(e.ConfigErr)
		if r.Hint == "" {
			r = r.hint("correct the file; an example with every setting is in the documentation")
		}
		return r
	}
	if e.ConfigPath == "" {
		return fine("there is no configuration file; the defaults hold")
	}
	r := fine("%s is valid", e.ConfigPath).fact("path", e.ConfigPath)
	if e.UID == 0 {
		if err := e.Ownership(e.ConfigPath); err != nil {
			return e.failed(err).fact("path", e.ConfigPath)
		}
	}
	return r
}

// account is a line of /etc/passwd.
type account struct {
	name, shell string
	uid         uint64
}

func (a account) login() bool {
	base := filepath.Base(a.shell)
	return base != "nologin" && base != "false"
}

// accounts reads /etc/passwd only: a directory service may hold a million users, and none of them belongs to a jail.
func (e *exam) accounts() ([]account, error) {
	text, err := e.read("etc/passwd")
	if err != nil {
		return nil, fmt.Errorf("read the users: %w", err)
	}
	var out []account
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 7 {
			continue
		}
		if uid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			out = append(out, account{name: f[0], uid: uid, shell: f[6]})
		}
	}
	return out, nil
}

// mighty are groups whose members can become root.
func mighty() []string {
	return []string{"docker", "podman", "lxd", "incus", "incus-admin", "libvirt", "disk", "sudo", "wheel", "root"}
}

// controlUser is the user of the control plane, which must have nothing that an attacker of it could use.
func controlUser(_ context.Context, e *exam) Result {
	name := e.Config.User
	users, err := e.accounts()
	if err != nil {
		return e.failed(err)
	}
	i := slices.IndexFunc(users, func(a account) bool { return a.name == name })
	if i < 0 {
		return warning("there is no user %s for the control plane", name).hint("`sudo clawjail up` makes it").fact("user", name)
	}
	if users[i].uid == 0 {
		return fails("the user %s of the control plane is root", name).hint("set user to one without privileges").fact("user", name)
	}
	groups, err := e.read("etc/group")
	if err != nil {
		return e.failed(fmt.Errorf("read the groups: %w", err))
	}
	for line := range strings.Lines(groups) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= 4 && slices.Contains(mighty(), f[0]) && slices.Contains(strings.Split(f[3], ","), name) {
			return warning("the user %s of the control plane is in the group %s, which is as good as root", name, f[0]).
				hint("sudo gpasswd -d %s %s", name, f[0]).fact("user", name).fact("group", f[0])
		}
	}
	return fine("the control plane runs as %s (%d)", name, users[i].uid).fact("user", name).fact("uid", users[i].uid)
}

// installation is what was written to the data directory on the first start.
type installation struct {
	ID     jail.Installation `json:"id"`
	Subnet netip.Prefix      `json:"subnet"`
}

// installed reads it. The error is fs.ErrNotExist on a host that clawjail has not run on.
func (e *exam) installed() (installation, error) {
	var in installation
	data, err := os.ReadFile(filepath.Join(e.Config.DataDir, hostd.InstallationFile))
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return in, fmt.Errorf("read %s: %w", hostd.InstallationFile, err)
	}
	if _, err := jail.ParseInstallation(string(in.ID)); err != nil {
		return in, err
	}
	return in, nil
}

// autoBits is the size of the network that is taken when none is configured.
const autoBits = 20

// uids is the range of user ids of browsers' jails: one per address.
func uids(c config.Config, in installation) (first, last uint64, err error) {
	network := netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), autoBits)
	if in.Subnet.IsValid() {
		network = in.Subnet
	}
	if c.Subnet.IsValid() {
		network = c.Subnet
	}
	pool, err := jail.NewPool(network, c.UIDBase)
	if err != nil {
		return 0, 0, err
	}
	first = uint64(c.UIDBase)
	return first, first + uint64(pool.Size()) - 1, nil
}

// uidRange looks for users that would own what jails write, could signal their processes, or would own the user namespaces of
// agents' jails, whose numbers follow.
func uidRange(_ context.Context, e *exam) Result {
	in, _ := e.installed() // its network only makes the range smaller or larger; the check subnet tells what is wrong with it
	first, last, err := uids(e.Config, in)
	if err != nil {
		return e.failed(err)
	}
	users, err := e.accounts()
	if err != nil {
		return e.failed(err)
	}
	last += jail.NamespaceOwners
	facts := Facts{"first": first, "last": last}
	const hint = "set uid_base to the first of %d ids that nobody has, for example 1879100000"
	size := last - first + 1
	for _, u := range users {
		if u.uid >= first && u.uid <= last {
			return fails("the user %s (%d) is in the range of the jails' users, %d to %d", u.name, u.uid, first, last).
				facts(facts).fact("user", u.name).hint(hint, size)
		}
	}
	for _, file := range []string{"etc/subuid", "etc/subgid"} {
		text, err := e.read(file)
		if err != nil {
			continue // a host without such users has no such file
		}
		for line := range strings.Lines(text) {
			f := strings.Split(strings.TrimSpace(line), ":")
			if len(f) != 3 {
				continue
			}
			start, err1 := strconv.ParseUint(f[1], 10, 33)
			count, err2 := strconv.ParseUint(f[2], 10, 33)
			if err1 == nil && err2 == nil && count > 0 && start <= last && start+count-1 >= first {
				return fails("/%s gives %d to %d to %s, which overlaps the jails' users, %d to %d", file, start, start+count-1, f[0], first, last).
					facts(facts).fact("user", f[0]).hint(hint, size)
			}
		}
	}
	return fine("nobody else has the jails' users, %d to %d", first, last).facts(facts)
}

// agentUser looks for a person who is, to the host, the same user as every agent.
func agentUser(_ context.Context, e *exam) Result {
	if e.Config.Agents.Driver != config.AgentDriverDocker && runtime.GOOS == "linux" {
		return fine("the jail of each agent has a user of its own; containers would be user %d of this host", jail.AgentUID)
	}
	users, err := e.accounts()
	if err != nil {
		return e.failed(err)
	}
	for _, u := range users {
		if u.uid != jail.AgentUID {
			continue
		}
		if u.login() {
			return warning("user %d is %s, who can log in: agents run as the same user, so %s can read and change their files and end their processes",
				u.uid, u.name, u.name).fact("user", u.name).
				hint("keep agents for machines where %s is trusted with them; browsers have users of their own and are not concerned", u.name)
		}
		return fine("user %d is %s, who cannot log in", u.uid, u.name).fact("user", u.name)
	}
	return fine("nobody on this host is user %d, which agents run as", jail.AgentUID)
}

package jail

import (
	"fmt"
	"slices"
	"strings"
)

// Profile is how a jail is confined. It is made from a Spec by ProfileFor and nowhere else; drivers translate
// it, and what they achieved is read back as an Observed and compared by Compare.
type Profile struct {
	UID, GID uint32 // as the program sees them
	// Host is the number of both on the host. Where it is another one, the jail has a user namespace that maps its user to it:
	// no other jail, and no user of the host, has that number.
	Host            uint32
	Capabilities    []string // always empty today; a field so that the comparison is explicit
	NoNewPrivileges bool
	ReadOnlyRoot    bool
	Seccomp         SeccompProfile
	AppArmor        AppArmorProfile // empty where the host has no AppArmor, or is told to do without
	Tmpfs           []Tmpfs
	Binds           []Bind
	Limits          Limits
}

// Bind is a folder in a jail that is not its own: of the operator, or one that outlives the jail. Neither devices nor
// setuid programs work in any.
type Bind struct {
	Path     string
	ReadOnly bool
	NoExec   bool
	// Mapped is set when the owner of the files is not the jail's user on the host, and the mount makes one of the other.
	Mapped bool
}

// SeccompProfile names one of the system-call filters.
type SeccompProfile string

const (
	// SeccompBrowser allows user namespaces and chroot, which Chromium's own sandbox is built from.
	SeccompBrowser SeccompProfile = "browser"
	// SeccompAgent allows neither.
	SeccompAgent SeccompProfile = "agent"
	// SeccompShared is SeccompAgent without UNIX sockets that could have an address.
	SeccompShared SeccompProfile = "shared"
)

// AppArmorProfile names one of the profiles of AppArmor.
type AppArmorProfile string

const (
	// AppArmorBrowser allows what Chromium's own sandbox is built from: user namespaces, and three capabilities in them.
	AppArmorBrowser AppArmorProfile = "browser"
	// AppArmorAgent allows neither.
	AppArmorAgent AppArmorProfile = "agent"
)

// AppArmorProfiles lists them.
func AppArmorProfiles() []AppArmorProfile { return []AppArmorProfile{AppArmorBrowser, AppArmorAgent} }

// Name is what the kernel calls an installation's own. Two installations can be of different versions.
func (a AppArmorProfile) Name(id Installation) string {
	return "clawjail-" + string(id) + "-" + string(a)
}

// Tmpfs is a writable memory file system in a jail.
type Tmpfs struct {
	Path   string
	Size   int64
	Mode   uint32
	NoExec bool
	// Owned gives it to the jail's user instead of root.
	Owned bool
}

// AgentUID is the user of agents' jails, as the agent wire contract has it.
const AgentUID = 1000

// Paths inside a jail that are part of its contract.
const (
	HomeDir  = "/home/browser" // of browser jails
	StageDir = "/run/clawjail" // launch.sh, env.sh and staged files, read-only

	StateDir     = "/state"      // of agents: kept when the jail is not, where there is a volume
	WorkspaceDir = "/workspace"  // of agents: the operator's folder, where there is one
	TokenDir     = "/run/hermit" // of agents: the folder of the token, read-only
	TokenName    = "token"       // the token's file in it, 0600 and of the jail's user

	ShimPath = "/clawjail-shim" // the first process of pods, in the images of templates
)

// Hosts is the /etc/hosts of a jail whose gateway has an address. There is no name server.
func Hosts(gateway string) string {
	return "127.0.0.1 localhost\n" + gateway + " gateway hermit_shell\n"
}

// Home is the home directory inside a jail of this kind.
func (k Kind) Home() string {
	if k == KindAgent {
		return StateDir
	}
	return HomeDir
}

// ProfileFor is the one place that decides how a jail is confined.
func ProfileFor(s Spec, l Lease) Profile {
	builds := s.Agent != nil && s.Agent.Builds
	p := Profile{
		UID: l.UID, GID: l.UID, Host: l.UID,
		NoNewPrivileges: true,
		ReadOnlyRoot:    true,
		Seccomp:         SeccompBrowser,
		AppArmor:        AppArmorBrowser,
		Limits:          s.Limits,
		Tmpfs: []Tmpfs{
			{Path: "/tmp", Size: s.Limits.Disk, Mode: 0o1777, NoExec: !builds},
			{Path: "/dev/shm", Size: s.Limits.SharedMemory, Mode: 0o1777, NoExec: true},
			{Path: s.Kind.Home(), Size: s.Limits.Disk, Mode: 0o700, NoExec: !builds, Owned: true},
		},
	}
	if s.Kind == KindAgent {
		p.UID, p.GID, p.AppArmor = AgentUID, AgentUID, AppArmorAgent
		// A socket with a path connects all processes that see the file, past the gateway, and passes descriptors on. In a jail without
		// folders of the host only its own programs do; its root is a clone, in which the files of others are other files.
		p.Seccomp = SeccompShared
		if len(s.Mounts) == 0 || s.UnixSockets {
			p.Seccomp = SeccompAgent
		}
	}
	if s.Agent != nil {
		if s.Agent.State > 0 {
			p.Tmpfs = slices.DeleteFunc(p.Tmpfs, func(t Tmpfs) bool { return t.Path == StateDir })
			p.Binds = append(p.Binds, Bind{Path: StateDir, Mapped: p.Host != p.UID})
		}
		if s.Agent.Token {
			p.Binds = append(p.Binds, Bind{Path: TokenDir, ReadOnly: true, NoExec: true})
		}
	}
	for _, m := range s.Mounts {
		p.Binds = append(p.Binds, Bind{Path: m.Target, ReadOnly: m.ReadOnly, Mapped: p.Host != p.UID})
	}
	return p
}

// Means are what a substrate can confine with beyond what all of them can. A measure that it has no means for is left out of the
// profile by one rule, and not by a driver that reports more than it saw.
type Means struct {
	// Seccomp is a filter of system calls for each jail.
	Seccomp bool
	// AppArmor is a profile of AppArmor for each jail. It depends on the host.
	AppArmor bool
	// SharedMemoryFolder is /dev/shm. Elsewhere shared memory is the kernel's, and counts against the limit of memory.
	SharedMemoryFolder bool
	// UserNamespaces are what a browser builds its own sandbox for its pages from. Without them the jail is the only wall.
	UserNamespaces bool
	// OwnUsers are numbers of users that each agent's jail has for itself. Without them all agents are one user of the host.
	OwnUsers bool
}

// AllMeans are those of Linux on a host with AppArmor.
func AllMeans() Means {
	return Means{Seccomp: true, AppArmor: true, SharedMemoryFolder: true, UserNamespaces: true, OwnUsers: true}
}

// With is the profile as a substrate with these means confines.
func (p Profile) With(m Means) Profile {
	if !m.Seccomp {
		p.Seccomp = ""
	}
	if !m.AppArmor {
		p.AppArmor = ""
	}
	if !m.SharedMemoryFolder {
		p.Tmpfs = slices.DeleteFunc(slices.Clone(p.Tmpfs), func(t Tmpfs) bool { return t.Path == "/dev/shm" })
	}
	if !m.OwnUsers {
		p = p.SharedUser()
	}
	return p
}

// NamespaceOwners is the distance from a jail's user on the host to the owner of its user namespace.
const NamespaceOwners = 1 << 16

// NamespaceOwner is the user on the host that owns the jail's user namespace. The kernel gives the owner all rights in it, to become
// the host's root too, so no process ever runs as that user, and it is not the jail's own user.
func (p Profile) NamespaceOwner() uint32 { return p.Host + NamespaceOwners }

// SharedUser is the profile of a jail whose user is the same one on the host.
func (p Profile) SharedUser() Profile {
	p.Host, p.Binds = p.UID, slices.Clone(p.Binds)
	for i := range p.Binds {
		p.Binds[i].Mapped = false
	}
	return p
}

// Observed is what the host says of a started jail: read from the kernel, not from what was asked for.
type Observed struct {
	UIDs, GIDs []uint32 // real, effective, saved and file system ids, as the host has them
	// InsideUID and InsideGID are the real ids as the jail has them; math.MaxUint32 for one without a mapping there.
	InsideUID, InsideGID uint32
	// NamespaceOwner is the user that the kernel charges, too, for resources that it counts by user.
	NamespaceOwner  uint32
	Groups          []uint32 // supplementary
	Capabilities    []string // union of all five sets
	NoNewPrivileges bool
	SeccompFilter   bool
	// AppArmor is the profile, when it is enforced, or else what the kernel says instead.
	AppArmor     AppArmorProfile
	ReadOnlyRoot bool
	// SharedNamespaces are the kinds of namespaces that the jail has in common with the host.
	SharedNamespaces []string
	Tmpfs            []Tmpfs // Owned is not read back
	Binds            []Bind  // what is mounted at the declared places
	Memory           int64
	MilliCPU         int
	Tasks            int
	Files            int
	// CoreFiles is set when the kernel would write down, or hand to a program of the host's, the memory of a program that
	// crashes in the jail.
	CoreFiles bool
	// Devices is set when the jail's processes may use devices of the host, wherever they find one.
	Devices bool
	// Writable lists mount points outside Tmpfs and Binds that are writable.
	Writable []string
	// NotPivoted is set when the jail's root is not the root of its mount tree.
	NotPivoted bool
}

// Compare lists every way in which a started jail is not confined as declared. An empty answer is the only
// one that lets the jail go on.
func (p Profile) Compare(o Observed) []string {
	var diff []string
	say := func(format string, a ...any) { diff = append(diff, fmt.Sprintf(format, a...)) }
	same := func(what string, got []uint32, want uint32) {
		if len(got) == 0 {
			say("%s was not seen", what)
		}
		for _, g := range got {
			if g != want {
				say("%s is %d, declared %d", what, g, want)
				return
			}
		}
	}
	same("uid", o.UIDs, p.Host)
	same("gid", o.GIDs, p.Host)
	same("uid in the jail", []uint32{o.InsideUID}, p.UID)
	same("gid in the jail", []uint32{o.InsideGID}, p.GID)
	if p.Host != p.UID {
		same("the owner of its user namespace", []uint32{o.NamespaceOwner}, p.NamespaceOwner())
	}
	for _, g := range o.Groups {
		if g != p.Host {
			say("supplementary group %d was not declared", g)
		}
	}
	for _, c := range o.Capabilities {
		if !slices.Contains(p.Capabilities, c) {
			say("capability %s was not declared", c)
		}
	}
	if p.NoNewPrivileges && !o.NoNewPrivileges {
		say("no_new_privs is not set")
	}
	if p.Seccomp != "" && !o.SeccompFilter {
		say("no seccomp filter is active")
	}
	if p.AppArmor != "" && o.AppArmor != p.AppArmor {
		say("the AppArmor profile is %q, declared %q", o.AppArmor, p.AppArmor)
	}
	if p.ReadOnlyRoot && !o.ReadOnlyRoot {
		say("the root file system is writable")
	}
	if len(o.SharedNamespaces) > 0 {
		say("namespaces shared with the host: %s", strings.Join(o.SharedNamespaces, ", "))
	}
	if o.NotPivoted {
		say("the root was entered by chroot, not by pivot_root")
	}
	if o.CoreFiles {
		say("the memory of a program that crashes leaves the jail")
	}
	if o.Devices {
		say("devices of the host are not filtered")
	}
	for _, w := range o.Writable {
		say("%s is writable and was not declared", w)
	}
	for _, want := range p.Tmpfs {
		i := slices.IndexFunc(o.Tmpfs, func(t Tmpfs) bool { return t.Path == want.Path })
		switch {
		case i < 0:
			say("tmpfs %s is missing", want.Path)
		case o.Tmpfs[i].Size <= 0 || o.Tmpfs[i].Size > want.Size:
			say("tmpfs %s has %d bytes, declared %d", want.Path, o.Tmpfs[i].Size, want.Size)
		case o.Tmpfs[i].Mode != want.Mode:
			say("tmpfs %s has mode %04o, declared %04o", want.Path, o.Tmpfs[i].Mode, want.Mode)
		case want.NoExec && !o.Tmpfs[i].NoExec:
			say("tmpfs %s allows programs to be run", want.Path)
		}
	}
	for _, want := range p.Binds {
		i := slices.IndexFunc(o.Binds, func(b Bind) bool { return b.Path == want.Path })
		switch {
		case i < 0:
			say("%s is not mounted", want.Path)
		case want.ReadOnly && !o.Binds[i].ReadOnly:
			say("%s is writable, declared read-only", want.Path)
		case want.NoExec && !o.Binds[i].NoExec:
			say("%s allows programs to be run", want.Path)
		case want.Mapped && !o.Binds[i].Mapped:
			say("%s does not map the owner of its files to the user of the jail", want.Path)
		}
	}
	limit := func(what string, got, want int64) {
		if got <= 0 || got > want {
			say("limit %s is %d, declared %d", what, got, want)
		}
	}
	limit("memory", o.Memory, p.Limits.Memory)
	limit("cpu", int64(o.MilliCPU), int64(p.Limits.MilliCPU))
	limit("tasks", int64(o.Tasks), int64(p.Limits.Tasks))
	limit("files", int64(o.Files), int64(p.Limits.Files))
	return diff
}

//go:build linux

package hosttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The folder of a simulated host holds bin (the commands), root (whatever the host's file systems show), pool (the contents
// of datasets), ns (the namespaces of jails), and these files.
const (
	stateFile = "state.json"
	lockFile  = "lock"
	logFile   = "log"
)

// state is everything that the host's kernel would know.
type state struct {
	Dir       string
	NextJID   int
	NextID    int // of the folders in pool
	Datasets  []*dataset
	Jails     []*prison
	Ifaces    []*iface
	Mounts    []*mount
	Limits    []string // rctl rules
	Anchors   map[string]*anchor
	PF        bool
	Klds      []string
	Sysctls   map[string]string
	Rulesets  []string // devfs
	Faults    []*fault
	Dying     string // how long a removed jail stays: a duration, or "msl"
	Allocated int64  // bytes that count as used by nobody
}

// dataset is a file system or a snapshot of the pool.
type dataset struct {
	Name    string
	ID      string // folder in pool
	Origin  string
	Props   map[string]string // set on it, not inherited
	Mounted string            // where it is mounted now
	Created time.Time
}

func (d *dataset) snapshot() bool { return strings.Contains(d.Name, "@") }

// mount is a line of mount(8), newest last. Those of datasets are here too.
type mount struct {
	Special, Node, Type string
	Options             []string
}

// prison is a jail, alive or dying.
type prison struct {
	JID     int
	Name    string
	Path    string
	Params  map[string]string
	VNet    bool
	Persist bool
	Until   time.Time // when a dying one is gone; zero while it is alive
	MSL     int       // net.inet.tcp.msl of its network stack, in milliseconds
	Entered []entered
}

// entered is a process that came in by jexec or as a command. It is remembered because one that has ended, and that nobody
// has waited for, is in no namespace any more and still in the jail.
type entered struct {
	PID   int
	Start string
}

func (p *prison) dying() bool { return !p.Until.IsZero() }

// iface is a network interface. VNet is the jid of the jail whose network stack holds it, 0 for the host's.
type iface struct {
	Name, Driver string
	Unit         int
	VNet         int
	Peer         string // the driver's name of the other half: epair units are pairs
	Ether, Hw    string
	Description  string
	Groups       []string
	Inet         []string // prefixes
	NoInet6      bool
	Up           bool
	Members      []member
}

type member struct {
	Name    string
	Private bool
}

// anchor is a place of rules and tables in pf.
type anchor struct {
	Rules  []string
	Tables map[string]*table
}

type table struct {
	Addresses []string
	Declared  bool // named by the loaded rules; one that is not filters nothing
}

// open takes the host's lock and reads its state.
func open(dir string) (*state, *os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := ignoringInterrupts(func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX) }); err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	s.Dir = dir
	return &s, lock, s.pass()
}

// save writes the state, in one step: a command that is killed leaves the old or the new one.
func (s *state) save() error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	file := filepath.Join(s.Dir, stateFile)
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// pass lets happen what happens by itself: dying jails are gone when their time is, and those without persist when their last
// process is.
func (s *state) pass() error {
	var errs []error
	for _, p := range slices.Clone(s.Jails) {
		if !p.dying() && !p.Persist && len(s.processes(p)) == 0 {
			errs = append(errs, s.remove(p))
		}
		if p.dying() && !time.Now().Before(p.Until) {
			errs = append(errs, s.bury(p))
		}
	}
	return errors.Join(errs...)
}

func (s *state) dataset(name string) *dataset {
	for _, d := range s.Datasets {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// prison finds a jail by its name or number.
func (s *state) prison(id string, dying bool) *prison {
	for _, p := range s.Jails {
		if (p.Name == id || fmt.Sprint(p.JID) == id) && (dying || !p.dying()) {
			return p
		}
	}
	return nil
}

func (s *state) iface(name string, vnet int) *iface {
	for _, i := range s.Ifaces {
		if i.Name == name && i.VNet == vnet {
			return i
		}
	}
	return nil
}

// node resolves a path of the host, as a command was given it. A path outside of the host's folder is refused: a test that
// would mount over the machine's own folders is wrong.
func (s *state) node(path string) (string, error) {
	path = filepath.Clean(path)
	if !within(path, filepath.Join(s.Dir, "root")) {
		return "", fmt.Errorf("%s is outside of the simulated host %s/root", path, s.Dir)
	}
	return path, nil
}

// within says whether a path is a folder or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func ignoringInterrupts(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func missingIsFine(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

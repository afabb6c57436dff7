package agents

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// declaration is the file of an agent: what is declared of it, and how far that has come.
type declaration struct {
	Version int `json:"version"`
	jail.Kept
	// Generation is raised with everything that needs a new jail.
	Generation uint64 `json:"generation"`
	// Containers is set when it has had a container: it may have a volume at the engine.
	Containers bool `json:"containers,omitempty"`
	// Dropping is set while it is being dropped, so that the next host daemon goes on with it.
	Dropping *jail.DropOptions `json:"dropping,omitempty"`

	damage string // why it could not be read
}

const declarationVersion = 1

// Key is that of the agent.
func (d declaration) Key() string { return d.Spec.Agent.Key() }

// run is the file that says which jail is that of an agent. It is not forced to the disk: no jail outlives the host.
type run struct {
	Jail       jail.Name `json:"jail"`
	Generation uint64    `json:"generation"`
	Boot       string    `json:"boot"`
	Restarts   int       `json:"restarts"`
	Crashes    int       `json:"crashes,omitzero"`
	// Exit is set once the program has ended.
	Exit *jail.Exit `json:"exit,omitempty"`
}

// The files of an agent, behind its key. None of them is readable for anybody else.
const (
	declarationSuffix = ".json"
	tokenSuffix       = ".token"
	runSuffix         = ".run"
	remainsSuffix     = ".volume" // dropped, but its volume at the engine was kept
	tempSuffix        = ".tmp"
	// maxFile is more than any of them has: staged files are a megabyte at most, which base64 makes a third longer.
	maxFile = 4 << 20
)

// files are the declarations on the disk. The folder is root's own.
type files struct {
	root *os.Root
	dir  *os.File
	log  *slog.Logger
	seq  atomic.Uint64 // of temporary names
}

func openFiles(path string, log *slog.Logger) (_ *files, err error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fullDisk(fmt.Errorf("make the folder of the agents: %w", err))
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the folder of the agents: %w", err)
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the folder of the agents: %w", err), root.Close())
	}
	f := &files{root: root, dir: dir, log: log}
	info, err := dir.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = problem.New(problem.BadConfig, "chmod 0700 "+path, "the folder %s is open to others", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *files) close() error { return errors.Join(f.dir.Close(), f.root.Close()) }

// load reads every declaration. One that is damaged is there, stopped, and says so: what it was cannot be known.
func (f *files) load() ([]declaration, error) {
	entries, err := fs.ReadDir(f.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("read the agents: %w", err)
	}
	var all []declaration
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
	}
	for _, e := range entries {
		// Leftovers of a process that was killed: a half-written file, and files that belong to no declaration.
		stem, isToken := strings.CutSuffix(e.Name(), tokenSuffix)
		stem, isRun := strings.CutSuffix(stem, runSuffix)
		if strings.HasSuffix(e.Name(), tempSuffix) || (isToken || isRun) && !there[stem+declarationSuffix] {
			if err := f.root.Remove(e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("sweep the agents: %w", err)
			}
			continue
		}
		key, ok := strings.CutSuffix(e.Name(), declarationSuffix)
		if !ok {
			continue
		}
		id, ok := parseKey(key)
		if !ok {
			f.log.Warn("a file among the agents that is none", "file", e.Name())
			continue
		}
		d, err := f.declared(id)
		if err != nil {
			f.log.Error("read the declaration of an agent", "agent", key, "error", err)
			d = declaration{Kept: jail.Kept{Spec: jail.Spec{Agent: &id}, Stopped: true}, damage: err.Error()}
		}
		all = append(all, d)
	}
	return all, nil
}

// parseKey is the inverse of jail.Agent.Key.
func parseKey(key string) (jail.Agent, bool) {
	a := jail.Agent{Tenant: "default", Name: key}
	if tenant, name, ok := strings.Cut(key, "."); ok {
		a = jail.Agent{Tenant: tenant, Name: name}
	}
	return a, jail.ValidAgentName(a.Tenant) == nil && jail.ValidAgentName(a.Name) == nil && a.Key() == key
}

func (f *files) declared(id jail.Agent) (declaration, error) {
	var d declaration
	if err := f.read(id.Key()+declarationSuffix, &d); err != nil {
		return d, err
	}
	switch {
	case d.Version != declarationVersion:
		return d, fmt.Errorf("its version is %d, not %d", d.Version, declarationVersion)
	case d.Spec.Agent == nil || d.Key() != id.Key():
		return d, errors.New("it speaks of another agent")
	}
	return d, Validate(d.Kept)
}

func options() json.Options {
	return json.JoinOptions(jsonv1.FormatDurationAsNano(true), json.RejectUnknownMembers(true))
}

func (f *files) read(name string, into any) error {
	data, err := f.readAll(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into, options())
}

func (f *files) readAll(name string) ([]byte, error) {
	// A pipe in the place of the file must not make the host daemon wait.
	file, err := f.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read from
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d bytes", maxFile)
	}
	return data, err
}

// declare puts a declaration on the disk.
func (f *files) declare(d declaration) error {
	d.Version = declarationVersion
	data, err := json.Marshal(d, options())
	if err != nil {
		return fmt.Errorf("encode the declaration: %w", err)
	}
	return f.write(d.Key()+declarationSuffix, data, true)
}

// token reads the token of an agent; fs.ErrNotExist when there is none.
func (f *files) token(key string) ([]byte, error) {
	data, err := f.readAll(key + tokenSuffix)
	if err != nil {
		return nil, fmt.Errorf("read the token of %s: %w", key, err)
	}
	if err := validToken(string(data)); err != nil {
		return nil, fmt.Errorf("the token of %s is damaged: %w", key, fs.ErrNotExist) // as if there were none
	}
	return data, nil
}

func (f *files) setToken(key, token string) error {
	return f.write(key+tokenSuffix, []byte(token), true)
}

// running reads which jail was that of an agent. A file that cannot be read names none.
func (f *files) running(key string) run {
	var r run
	if err := f.read(key+runSuffix, &r); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.log.Warn("read which jail an agent has", "agent", key, "error", err)
		}
		return run{}
	}
	return r
}

func (f *files) setRunning(key string, r run) error {
	data, err := json.Marshal(r, options())
	if err != nil {
		return fmt.Errorf("encode which jail an agent has: %w", err)
	}
	return f.write(key+runSuffix, data, false)
}

// remains says whether an agent that was dropped has a volume at the engine.
func (f *files) remains(key string) (bool, error) {
	_, err := f.root.Lstat(key + remainsSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// remember writes down that an agent has a volume at the engine, and how large it was declared.
func (f *files) remember(key string, size int64) error {
	return f.write(key+remainsSuffix, strconv.AppendInt(nil, size, 10), true)
}

// remembered are the volumes at the engine of agents that were dropped, by key, with what was declared of each. Where that is not
// known, as of those that an earlier version has left, it is the least that can be declared.
func (f *files) remembered() (map[string]int64, error) {
	names, err := f.dir.Readdirnames(-1)
	if _, back := f.dir.Seek(0, io.SeekStart); err == nil {
		err = back
	}
	if err != nil {
		return nil, fmt.Errorf("list what agents have left: %w", err)
	}
	out := map[string]int64{}
	for _, name := range names {
		key, is := strings.CutSuffix(name, remainsSuffix)
		if !is || strings.HasPrefix(name, ".") {
			continue
		}
		text, err := f.root.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read what %s has left: %w", key, err)
		}
		size, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || size < jail.MinState {
			size = jail.MinState
		}
		out[key] = size
	}
	return out, nil
}

func (f *files) forget(key string) error { return f.remove(key + remainsSuffix) }

// drop removes the files of an agent, the declaration last: until then the drop is known to be under way.
func (f *files) drop(key string) error {
	if err := errors.Join(f.remove(key+tokenSuffix), f.remove(key+runSuffix)); err != nil {
		return err
	}
	if err := f.remove(key + declarationSuffix); err != nil {
		return err
	}
	return f.dir.Sync()
}

func (f *files) remove(name string) error {
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write replaces a file atomically: a reader sees the one before or this one, also when the process is killed, and with sync
// also when the host goes down.
func (f *files) write(name string, data []byte, sync bool) (err error) {
	temp := fmt.Sprintf(".%s.%d%s", name, f.seq.Add(1), tempSuffix)
	defer func() {
		if err != nil {
			err = errors.Join(fullDisk(err), f.remove(temp))
		}
	}()
	file, err := f.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil && sync {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := f.root.Rename(temp, name); err != nil {
		return err
	}
	if sync {
		return f.dir.Sync()
	}
	return nil
}

// fullDisk gives the errors of a full disk their code.
func fullDisk(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return problem.Wrap(err, problem.DiskFull, "free some space: du -xh --max-depth=2 shows who has it", "the disk of the data directory is full")
	}
	return err
}

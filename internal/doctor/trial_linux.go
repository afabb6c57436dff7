package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// A trial is a small installation with an id of its own. Its folders are <data_dir>/doctor-<id> and
// <run_dir>/doctor-<id>, so that it works on the file systems that jails would have. The one in the data directory has
// a file that is locked for as long as the trial's process lives: a folder without a lock is a trial that was killed,
// and the next one removes it with everything that carries its id.

const (
	trialPrefix = "doctor-"
	lockFile    = "lock"
	subnetFile  = "subnet"
	tiny        = "tiny" // a template with one file in it
	// openBound is how long it may take on an ordinary machine to open one part.
	openBound = 8 * time.Second
)

// part is one part of a trial, opened when the first check needs it. The others that need it get the same one, or the
// same error.
type part[T any] struct {
	open func() (T, error)

	once  sync.Once
	value T
	err   error
}

func (p *part[T]) get() (T, error) {
	p.once.Do(func() { p.value, p.err = p.open() })
	return p.value, p.err
}

var errOver = errors.New("the trial is over")

// seal returns the part when it was opened, and keeps it from being opened later.
func (p *part[T]) seal() (T, bool) {
	p.once.Do(func() { p.err = errOver })
	return p.value, p.err == nil
}

type trial struct {
	c      config.Config
	log    *slog.Logger
	ctx    context.Context // ends with undo
	cancel context.CancelFunc
	// pace is that of the options.
	pace pace.Pace

	id        jail.Installation // after folders
	data, run string
	lock      *os.File
	made      []string // folders above that were missing, the last first

	undoing sync.Once
	left    error // why something could not be undone

	folders  part[jail.Installation]
	pool     part[*jail.Pool]
	storage  part[*linux.Storage] // with the template tiny
	sample   part[string]         // the tree of that
	browsers part[*linux.Storage] // with the templates of the configuration
	limiter  part[*linux.Limiter]
	runtime  part[*linux.Runtime]
	network  part[*linux.Network]
	firewall part[*linux.Firewall]
	gateway  part[func() error]
}

// newTrial says how the parts are opened. They open what they depend on.
func newTrial(c config.Config, log *slog.Logger) *trial {
	t := &trial{c: c, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.folders.open = t.makeFolders
	t.pool.open = t.openPool
	t.storage.open = func() (*linux.Storage, error) { return t.openStorage("") }
	t.sample.open = t.openSample
	t.browsers.open = func() (*linux.Storage, error) { return t.openStorage(t.c.TemplatesDir) }
	t.limiter.open = func() (*linux.Limiter, error) {
		if _, err := t.folders.get(); err != nil {
			return nil, err
		}
		return linux.NewLimiter(t.options())
	}
	t.runtime.open = func() (*linux.Runtime, error) {
		limiter, err := t.limiter.get()
		if err != nil {
			return nil, err
		}
		o := t.options()
		o.AppArmor, err = linux.LoadAppArmor(t.ctx, linux.AppArmorOptions{Installation: t.id, Mode: string(t.c.AppArmor), Root: "/", Log: t.log})
		if err != nil {
			return nil, err
		}
		return linux.NewRuntime(o, limiter)
	}
	t.network.open = func() (*linux.Network, error) {
		pool, err := t.pool.get()
		if err != nil {
			return nil, err
		}
		return t.openNetwork(t.ctx, pool)
	}
	t.firewall.open = func() (*linux.Firewall, error) {
		pool, err := t.pool.get()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(t.ctx, t.pace.Longer(openBound))
		defer cancel()
		return linux.OpenFirewall(ctx, linux.FirewallConfig{Installation: t.id, Pool: pool, Port: t.c.Gateway.Port, Log: t.log})
	}
	t.gateway.open = t.openGateway
	return t
}

// options are those of the parts, once there are folders. The address of the gateway is only written into files, and a trial of
// storage should not need a network.
func (t *trial) options() linux.Options {
	return linux.Options{
		Installation: t.id, RunDir: t.run, DataDir: t.data, Storage: string(t.c.Storage), ZFSDataset: t.c.ZFSDataset, Runtime: t.c.Runtime,
		Gateway: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Log: t.log,
	}
}

func (t *trial) openStorage(templates string) (*linux.Storage, error) {
	if _, err := t.folders.get(); err != nil {
		return nil, err
	}
	o := t.options()
	o.Templates = templates
	s, err := linux.NewStorage(o)
	if err != nil {
		return nil, err
	}
	if err := s.Ready(t.ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (t *trial) openNetwork(ctx context.Context, pool *jail.Pool) (*linux.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, t.pace.Longer(openBound))
	defer cancel()
	return linux.OpenNetwork(ctx, linux.NetworkConfig{Installation: t.id, Pool: pool, RunDir: t.run, Log: t.log})
}

// openPool takes an unused network and writes it to a file: a later doctor that clears up after a killed one takes the network of that file.
func (t *trial) openPool() (*jail.Pool, error) {
	if _, err := t.folders.get(); err != nil {
		return nil, err
	}
	file := filepath.Join(t.data, subnetFile)
	if text, err := os.ReadFile(file); err == nil {
		network, err := netip.ParsePrefix(string(text))
		if err != nil {
			return nil, err
		}
		return t.poolOf(network)
	}
	free, err := linux.FreeSubnet(t.ctx, t.id, candidates())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, []byte(free.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write the trial's network down: %w", err)
	}
	return t.poolOf(free)
}

// poolOf gives the trial's jails the last users of the range: those that are handed out last.
func (t *trial) poolOf(network netip.Prefix) (*jail.Pool, error) {
	own, err := jail.NewPool(network, 0)
	if err != nil {
		return nil, err
	}
	base := t.c.UIDBase
	if first, last, err := uids(t.c, installation{}); err == nil && last-first >= uint64(own.Size()) {
		base = uint32(last) - uint32(own.Size()) + 1
	}
	return jail.NewPool(network, base)
}

// makeFolders clears up after trials that were killed, and makes the folders of this one.
func (t *trial) makeFolders() (jail.Installation, error) {
	if t.c.DataDir == "" || t.c.RunDir == "" {
		return "", errors.New("make a folder for trials: there is no data or run directory")
	}
	if err := linux.BecomeSubreaper(); err != nil { // a jail's exit status comes to this process, as to the host daemon
		return "", err
	}
	if err := sweep(t.ctx, t.c, t.log); err != nil {
		return "", fmt.Errorf("remove what an earlier doctor has left: %w", err)
	}
	err := errTaken
	for try := 0; try < 3 && errors.Is(err, errTaken); try++ {
		err = t.claim()
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("make a folder for trials: %w", err), t.removeFolders(t.ctx))
	}
	return t.id, nil
}

// errTaken says that another doctor was quicker: it has the same id, or found the folder before it was locked and took
// it for an abandoned one.
var errTaken = errors.New("another doctor took the folder")

// claim makes the folders of an id and locks them.
func (t *trial) claim() error {
	t.id = trialID()
	data := filepath.Join(t.c.DataDir, trialPrefix+string(t.id))
	err := t.makeFolder(data)
	if errors.Is(err, fs.ErrExist) {
		return errTaken
	}
	if err != nil {
		return err
	}
	lock, err := lockTrial(data)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return errTaken
	}
	t.data, t.lock = data, lock // ours from here on, to be removed
	if err != nil {
		return err
	}
	t.run = filepath.Join(t.c.RunDir, trialPrefix+string(t.id))
	return t.makeFolder(t.run)
}

// trialID begins with a letter that is not special: what makes a trial is its folder.
func trialID() jail.Installation {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	text := make([]byte, 4)
	rand.Read(text) // never fails, see its documentation
	for i := range text {
		text[i] = letters[int(text[i])%len(letters)]
	}
	return jail.Installation(text)
}

// makeFolder makes a folder, which must not be there, and those above it that are not.
func (t *trial) makeFolder(path string) error {
	var missing []string
	above := filepath.Dir(path)
	for dir, there := above, existing(above); dir != there; dir = filepath.Dir(dir) {
		missing = append(missing, dir)
	}
	t.made = append(missing, t.made...)
	if err := os.MkdirAll(above, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // a link to nowhere exists
		return err
	}
	return os.Mkdir(path, 0o711)
}

// lockTrial locks the folder of a trial for as long as the file is open.
func lockTrial(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// openGateway listens where the gateway would, and writes one byte to each connection: that fits in any buffer, so the write does
// not block. The returned function ends it.
func (t *trial) openGateway() (end func() error, err error) {
	pool, err := t.pool.get()
	if err != nil {
		return nil, err
	}
	if _, err := t.network.get(); err != nil { // the bridge has the address
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(t.ctx, "tcp4", netip.AddrPortFrom(pool.Gateway(), t.c.Gateway.Port).String())
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.Join(errPort, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen where the gateway would: %w", err)
	}
	var answers sync.WaitGroup
	answers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			_, _ = conn.Write([]byte{0}) // the trial that connected notices when no byte comes
			_ = conn.Close()
		}
	})
	return func() error {
		defer answers.Wait()
		return l.Close()
	}, nil
}

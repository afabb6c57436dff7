// Package helper is the setuid program clawjail-spawn: it lets users whom root has named run programs in jails that root has
// named, as a user of the jail that root has named, and nothing else.
//
// The caller is known by the real user id that the kernel gives. It may say a verb, a name and a random number; what
// these stand for is in a file of root's. Nothing of the caller's environment, descriptors, limits, folder or signals
// reaches what runs as root, and no shell runs on the host. The folder that is staged for the program is looked at by descriptor, and
// read by the shell of the jail, as the jail's user. It links nothing but the standard library and x/sys.
//
// No FreeBSD was at hand: what the kernel of FreeBSD does with a setuid program is taken from its manual pages.
package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jailspawn/command"
	"github.com/clawjail/clawjail/internal/jailspawn/process"
	"github.com/clawjail/clawjail/internal/jailspawn/staged"
	"github.com/clawjail/clawjail/internal/safepath"
)

const (
	// Path is where the helper is installed when nothing else is known, and ConfigPath its configuration.
	Path       = "/usr/local/libexec/clawjail-spawn"
	ConfigPath = "/usr/local/etc/clawjail/spawn.conf"
	// Failed is its status when it refuses or fails itself; every other status is that of the program.
	Failed = 125
	// Lifeline is the descriptor of a pipe that the caller holds the other end of: when that closes, the program ends.
	Lifeline = 3

	// signalled is added to the number of a signal that ended a program, as shells do.
	signalled = 128
)

// Program is the process as it was started.
type Program struct {
	ConfigFile string
	Args       []string
	Environ    []string
}

// Main runs the helper and returns its status.
func Main(p Program) int {
	status, err := p.main()
	if err != nil {
		note("refused or failed", os.Getuid(), err.Error())
		fmt.Fprintln(os.Stderr, "clawjail-spawn: "+err.Error())
		return Failed
	}
	return status
}

// caller is the user that started the helper, as the kernel tells it.
type caller struct{ uid int }

func (p Program) main() (int, error) {
	if err := process.KeepFrom(Lifeline + 1); err != nil {
		return 0, fmt.Errorf("close descriptors: %w", err)
	}
	if len(p.Args) == 0 {
		return 0, errUsage // started without even a name
	}
	if !slices.Equal(p.Environ, cleanEnvironment()) {
		return 0, again(p.Args) // what the runtime of this process was told before main is forgotten with it
	}
	who := caller{uid: os.Getuid()}
	if os.Geteuid() != 0 {
		return 0, errors.New("it is not setuid root, or on a file system that is mounted nosuid")
	}
	if who.uid == 0 {
		return 0, errors.New("root needs no helper")
	}
	if err := settle(); err != nil {
		return 0, err
	}
	// From here on no signal of the caller's arrives, but those of a terminal: they are taken and forgotten.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	go func() { // ends with the process
		for s := range signals {
			if s == syscall.SIGTERM { // of root, or of another helper
				cancel()
			}
		}
	}()
	r, err := ParseRequest(p.Args[1:])
	if err != nil {
		return 0, err
	}
	c, err := LoadConfig(p.ConfigFile)
	if err != nil {
		return 0, err
	}
	if r.Verb == VerbEnd {
		return end(c, who, r)
	}
	return run(ctx, cancel, c, who, r)
}

func end(c Config, who caller, r Request) (int, error) {
	found, err := endRuns(c, who.uid, r)
	if err == nil && found == 0 {
		err = errors.New("no program of yours runs there")
	}
	note("end", who.uid, r.Name+r.ID)
	return 0, err
}

// place is what a name stands for, when the caller may use it. That there is none and that it is not theirs look alike.
func (c Config) place(who caller, r Request) (Place, error) {
	all := c.Jails
	if r.Verb == VerbRun {
		all = c.Roots
	}
	p, there := all[r.Name]
	if !there || !slices.Contains(p.Users, who.uid) {
		return Place{}, fmt.Errorf("user %d may not %s %s", who.uid, r.Verb, r.Name)
	}
	return p, nil
}

func run(ctx context.Context, cancel func(), c Config, who caller, r Request) (status int, err error) {
	p, err := c.place(who, r)
	if err != nil {
		return 0, err
	}
	if err := watch(cancel); err != nil {
		return 0, err
	}
	if err := Trusted(p.Root); err != nil {
		return 0, err
	}
	slot, err := takeRun(c, who.uid, r)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, slot.Close()) }()
	root, err := safepath.Open(p.Root)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	stage, err := root.Folder(p.Stage)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	dir, err := stage.Folder(r.ID)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := staged.Check(dir, who.uid); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, staged.Remove(stage, r.ID)) }() // the caller may be gone by then
	note(r.Verb, who.uid, r.Name+" "+r.ID)
	exit, err := hold(ctx, c, p, r)
	if err != nil {
		return 0, err
	}
	note("ended", who.uid, r.Name+" "+r.ID)
	if r.Verb == VerbRun {
		if status, there, err := staged.StatusOf(dir); err != nil || there {
			return status, err
		}
		if exit.Code == 0 && exit.Signal == 0 {
			exit.Signal = syscall.SIGKILL // it did not live to say how it ended
		}
	}
	if exit.Signal != 0 {
		return signalled + int(exit.Signal), nil
	}
	return exit.Code, nil
}

// hold runs what is staged until it ends, or until ctx does.
func hold(ctx context.Context, c Config, p Place, r Request) (process.Exit, error) {
	commands := hostcmd.Runner{Dir: c.Commands}
	run := func(ctx context.Context, argv []string) error {
		_, err := commands.Run(ctx, argv[0], argv[1:]...)
		return err
	}
	launch := []string{command.Shell, filepath.Join(p.Stage, r.ID, staged.Launch)}
	h := process.Held{Jail: r.Name, Run: run, Commands: commands}
	argv := command.Enter(r.Name, p.As, launch...)
	if r.Verb == VerbRun {
		h.Jail = command.EphemeralName(r.ID)
		h.Ephemeral = &command.Ephemeral{Name: h.Jail, Path: p.Root, User: p.As, HostNetwork: p.HostNetwork}
		argv = h.Ephemeral.Create(launch...)
	}
	cmd, err := commands.Command(context.WithoutCancel(ctx), argv[0], argv[1:]...)
	if err != nil {
		return process.Exit{}, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return h.Hold(ctx, cmd)
}

// watch calls cancel when the caller's end of the lifeline closes.
func watch(cancel func()) error {
	var st unix.Stat_t
	if err := unix.Fstat(Lifeline, &st); err != nil || uint32(st.Mode)&unix.S_IFMT != unix.S_IFIFO {
		return fmt.Errorf("descriptor %d is no pipe: a program ends when its caller does, which is seen there", Lifeline)
	}
	unix.CloseOnExec(Lifeline)
	go func() { // ends with the process
		defer cancel()
		var rest [512]byte
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: Lifeline, Events: unix.POLLIN}}, -1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			n, err := unix.Read(Lifeline, rest[:])
			if n <= 0 && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return nil
}

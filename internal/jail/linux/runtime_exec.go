//go:build linux

package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

// joinScript puts a shell into the groups whose files it is given and then becomes the runtime. A process that moves
// itself, and only itself, is the one case in which the kernel does not wait for all processors.
const joinScript = `while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"`

// execute runs the runtime and returns when it has ended, and everything of a failed one with it. Descriptors that
// are nil are /dev/null. Where netns is not empty the runtime is started in that network. name is the jail's whose groups the runtime is to be in, if it is of those that join.
//
// The runtime is killed with this process: it would otherwise go on making a jail that nobody waits for. Processes that it has
// started by then either end with it or are in the jail's control group.
func (r *Runtime) execute(ctx context.Context, p *program, name jail.Name, args []string, stdio [3]*os.File, bundle *safepath.Folder, netns string) (err error) {
	args = append([]string{p.path}, args...)
	group := -1
	if p.joins && name != "" {
		if r.limits.Version() == 2 {
			if group, err = unix.Open(r.limits.group(r.limits.memory, string(name)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return fmt.Errorf("open the control group: %w", err)
			}
			defer func() { err = errors.Join(err, unix.Close(group)) }()
		} else {
			join := []string{"/bin/sh", "-c", joinScript, "join"}
			for _, dir := range r.limits.joinable(string(name)) {
				join = append(join, filepath.Join(dir, "tasks"))
			}
			args = append(append(join, "--"), args...)
		}
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	// In a process group of its own, so that a runtime that is killed half-way can be collected with its children.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, UseCgroupFD: group >= 0, CgroupFD: max(group, 0)}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	jail.Connect(cmd, stdio)
	// Mount namespaces belong to a thread, and so does the death signal: the kernel sends it when the thread that
	// started the child ends.
	err = OnDiscardedThread(func() error {
		if err := enterNetwork(netns); err != nil {
			return err
		}
		if r.limits.Version() == 1 {
			if err := r.hideGroups(p); err != nil {
				return fmt.Errorf("prepare the runtime's view of control groups: %w", err)
			}
		}
		// Recorded before it can be seen to end, so that its status is collected here.
		r.mu.Lock()
		err := cmd.Start()
		if err == nil {
			r.running[cmd.Process.Pid] = true
		}
		r.mu.Unlock()
		if err != nil {
			return err
		}
		err = cmd.Wait()
		r.mu.Lock()
		delete(r.running, cmd.Process.Pid)
		r.mu.Unlock()
		return err
	})
	if err == nil {
		return nil
	}
	if cmd.Process != nil {
		collectGroup(cmd.Process.Pid)
	}
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	if words := lastWords(bundle); words != "" {
		return fmt.Errorf("%w: %s", err, words)
	}
	return err
}

// network is the one that the runtime is started in, which what it starts inherits. A runtime that has entered a user
// namespace may not enter a network of the host's any more, and some enter that first when a program joins a jail.
func network(p jail.Placement) string {
	if p.Profile.Host != p.Profile.UID {
		return p.NetNS
	}
	return ""
}

// enterNetwork moves the calling thread.
func enterNetwork(path string) error {
	if path == "" {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // opened for nothing but its identity
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network of the jail: %w", err)
	}
	return nil
}

// collectGroup ends what is left of a failed runtime's process group and collects those of it that have become
// children of this process: what runc starts is in no control group at first. The group's number is not used again
// while one of them exists.
func collectGroup(pgid int) {
	waitFor(context.Background(), 500*time.Millisecond, func() bool {
		for {
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PGID, pgid, &info, unix.WEXITED|unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return true
			}
			if err != nil || info.Signo == 0 {
				_ = unix.Kill(-pgid, unix.SIGKILL) // ESRCH: they have ended by now, and are collected next
				return false
			}
		}
	})
}

// hideGroups gives the calling thread a mount namespace in which the runtime sees only the control groups that it
// needs. runc enters each one that it sees, which takes its time; crun refuses hosts that mount version 2 beside
// version 1.
func (r *Runtime) hideGroups(p *program) error {
	needed := []string{"memory", "cpu", "cpuacct", "pids", "devices", "freezer"}
	var hide []string
	for _, h := range r.limits.hierarchies {
		if h.unified || !p.joins && !slices.ContainsFunc(needed, h.has) {
			hide = append(hide, h.dir)
		}
	}
	if len(hide) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, dir := range hide {
		var err error
		if p.joins {
			// crun makes folders where a hierarchy is usually mounted without asking whether it is. These go
			// with the namespace.
			err = unix.Mount("clawjail", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k,mode=700")
		} else {
			err = unix.Unmount(dir, unix.MNT_DETACH)
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	return nil
}

// lastWords is what the runtime wrote to its log as an error: lines of JSON, or of text.
func lastWords(bundle *safepath.Folder) string {
	log, _, _ := bundle.Read(bundleLog, 8192) // what can be read
	var last string
	for line := range bytes.Lines(log) {
		var entry struct{ Level, Msg string }
		text := strings.TrimSpace(string(line))
		if json.Unmarshal(line, &entry) == nil {
			if entry.Level != "error" && entry.Level != "fatal" {
				continue
			}
			text = entry.Msg
		}
		if text != "" {
			last = text
		}
	}
	return last
}

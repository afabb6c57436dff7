//go:build linux

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A network namespace belongs to a thread. A function that changes a thread's namespace runs through OnDiscardedThread,
// so that no other goroutine can ever be scheduled onto a thread that looks at the wrong network.

// OnDiscardedThread runs f on an operating-system thread that ends with it. The process's first thread is never
// used: it cannot end, and /proc/self would show its namespace as the whole process's.
func OnDiscardedThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine holds the first thread, the next one cannot get it.
			defer runtime.UnlockOSThread()
			done <- OnDiscardedThread(f)
			return
		}
		done <- f() // ends while locked, which makes Go end the thread
	}()
	return <-done
}

// namespace is a new network namespace while it is being furnished.
type namespace struct {
	fd     int
	handle *netlink.Handle // speaks to the inside
}

func (n *namespace) close() {
	n.handle.Close()
	_ = unix.Close(n.fd) // a descriptor that only names a namespace has nothing to flush
}

// newNamespace makes a network namespace without IPv6 and binds it to path, where it stays until
// removeNamespace.
func newNamespace(path string) (*namespace, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return nil, fmt.Errorf("make the namespace's file: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("make the namespace's file: %w", err)
	}
	n := &namespace{fd: -1}
	err = OnDiscardedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare the network: %w", err)
		}
		// Before the first interface comes, so that none ever has an IPv6 address, not even for an instant.
		for _, what := range []string{"all", "default"} {
			if err := disableIPv6(what); err != nil {
				return err
			}
		}
		const own = "/proc/thread-self/ns/net"
		if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind the namespace to %s: %w", path, err)
		}
		if n.fd, err = unix.Open(own, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open the namespace: %w", err)
		}
		if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("open netlink in the namespace: %w", err)
		}
		return nil
	})
	if err != nil {
		if n.fd >= 0 {
			_ = unix.Close(n.fd)
		}
		return nil, errors.Join(err, removeNamespace(path))
	}
	return n, nil
}

// removeNamespace takes the file of a namespace away; the namespace itself ends with its last process. Removing
// what is not there succeeds. Copies of the mount that other mount namespaces inherited go with the file.
func removeNamespace(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue // something may have been mounted on it twice
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not mounted, or not there
		}
		return fmt.Errorf("unmount the namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the namespace's file: %w", err)
	}
	return nil
}

// disableIPv6 turns IPv6 off for an interface, or for "all" or "default", in the calling thread's namespace.
func disableIPv6(what string) error {
	return sysctl("ipv6/conf/"+what+"/disable_ipv6", "1")
}

// sysctl writes below /proc/sys/net as the calling thread sees it. A setting that the kernel does not have is
// taken as done: without IPv6 in the kernel there is nothing to turn off.
func sysctl(name, value string) error {
	err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set net/%s to %s: %w", name, value, err)
	}
	return nil
}

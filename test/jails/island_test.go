//go:build linux

package jails

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// island is a network of its own with nothing but loopback in it: what is there reaches only what listens there.
type island struct{ do chan func() }

func newIsland(t *testing.T) *island {
	t.Helper()
	testenv.Root(t)
	i := &island{do: make(chan func())}
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		// The thread is never unlocked: it ends with the goroutine, and the network with it.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- os.NewSyscallError("unshare", err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range i.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		<-done
		t.Fatal(err)
	}
	t.Cleanup(func() { close(i.do); <-done })
	return i
}

// in runs a function on the island's thread.
func (i *island) in(f func()) {
	done := make(chan struct{})
	i.do <- func() { defer close(done); f() }
	<-done
}

func (i *island) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var ln net.Listener
	var err error
	i.in(func() { ln, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// start starts a program there.
func (i *island) start(cmd *exec.Cmd) (err error) {
	i.in(func() { err = cmd.Start() })
	return err
}

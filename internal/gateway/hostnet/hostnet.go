// Package hostnet knows which networks the host is part of: its own addresses, and those that it reaches without a router.
// The gateway asks before every connection, because a public address can be inside too.
//
// The kernel is the only source: [Networks.Now] is as current as the kernel's own tables, also a moment after an address
// was added. It returns nil when they cannot be had, and netguard then lets no connection out.
//
// Counted are, of the network namespace that the gateway dials from, whatever interface and routing table they are in:
//
//	own     addresses of interfaces, and what the kernel's tables call local, broadcast or anycast
//	near    the prefix of every address, the other end of every point-to-point line, every route
//	        without a router, and every router
//
// An address behind a router is outside: nothing tells it from the Internet. So is one that only another namespace or a
// translator in front of the host knows, such as the public address of a virtual machine in a cloud.
package hostnet

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/clawjail/clawjail/internal/policy/netguard"
)

// Networks follows the networks of the host. Its methods may be called from several goroutines.
type Networks struct {
	log *slog.Logger

	mu     sync.Mutex // guards what follows
	kernel kernel
	now    *netguard.Networks // nil when it has to be read
	closed bool
	failed bool // it could not be read, and that was said
}

var errClosed = errors.New("networks of the host: closed")

// Open reads the networks of the namespace that its thread is in. They are followed until Close.
func Open(log *slog.Logger) (*Networks, error) {
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	n := &Networks{log: log, kernel: k}
	if _, err := n.read(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return n, nil
}

// Now returns what is known at this moment, and nil when nothing is.
func (n *Networks) Now() *netguard.Networks {
	now, err := n.read()
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.failed = false
	case !n.failed && !n.closed:
		n.failed = true
		n.log.Error("the networks of this host cannot be read: nothing leaves by the gateway until they can", "error", err)
	}
	return now
}

func (n *Networks) read() (*netguard.Networks, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errClosed
	}
	// Asked before reading: what changes while it is read is found by the next question.
	changed, err := n.kernel.changed()
	if err == nil && !changed && n.now != nil {
		return n.now, nil
	}
	n.now = nil
	if err != nil {
		return nil, err
	}
	own, near, err := n.kernel.list()
	if err != nil {
		return nil, err
	}
	n.now = netguard.NewNetworks(own, near)
	return n.now, nil
}

// Close ends it; nothing is known afterwards.
func (n *Networks) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed, n.now = true, nil
	return n.kernel.close()
}

// kernel is how a system is asked.
type kernel interface {
	// changed says whether anything may have changed since it was asked the last time.
	changed() (bool, error)
	// list returns the host's own addresses, and the prefixes and machines that it reaches without a router.
	list() (own, near []netip.Prefix, err error)
	close() error
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

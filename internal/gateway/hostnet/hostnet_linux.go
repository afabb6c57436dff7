package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// pieceSize holds what the kernel puts into one message of a list (at most 32 KiB, NLMSG_GOODSIZE).
	pieceSize = 64 << 10
	// tries is how often a list is read anew that changed while it was read.
	tries = 10
	// typeMask takes the flags off the type of an attribute (NLA_TYPE_MASK).
	typeMask = 0x3fff
	// waitSeconds bounds the wait for a piece. The kernel answers at once.
	waitSeconds = 5
)

// rtnetlink asks Linux. Both sockets stay in the namespace in which they were made.
type rtnetlink struct {
	news     int // hears of changes, and is only looked at when somebody asks: see changed
	ask      int
	sequence uint32
	piece    []byte
}

func openKernel() (kernel, error) {
	r := &rtnetlink{news: -1, ask: -1, piece: make([]byte, pieceSize)}
	var err error
	// A group that an old kernel does not know is no error.
	if r.news, err = open(unix.SOCK_NONBLOCK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP); err == nil {
		r.ask, err = open(0)
	}
	if err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(r.ask, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: waitSeconds}))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask the kernel for the networks of this host: %w", err), r.close())
	}
	return r, nil
}

func open(flags int, groups ...int) (int, error) {
	var mask uint32
	for _, group := range groups {
		mask |= 1 << (group - 1)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: mask}); err != nil {
		return -1, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return fd, nil
}

// close ends both sockets.
func (r *rtnetlink) close() error {
	var errs []error
	for _, fd := range []*int{&r.news, &r.ask} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// changed empties the queue of news. A message of the kernel is there before the call that made a change returns, so
// that nothing is missed; and of a queue that ran over the kernel says so (ENOBUFS), which is news as well. No goroutine waits
// for news: each connection looks before it begins.
func (r *rtnetlink) changed() (bool, error) {
	news := false
	for {
		_, _, err := unix.Recvfrom(r.news, r.piece, unix.MSG_DONTWAIT)
		switch err {
		case nil, unix.ENOBUFS:
			news = true
		case unix.EINTR:
		case unix.EAGAIN:
			return news, nil
		default:
			return true, os.NewSyscallError("recvfrom", err)
		}
	}
}

// list reads addresses and routes.
func (r *rtnetlink) list() (own, near []netip.Prefix, err error) {
	out := found{}
	for _, part := range []struct {
		kind uint16
		take func([]byte) error
	}{{unix.RTM_GETADDR, out.address}, {unix.RTM_GETROUTE, out.route}} {
		if err := r.dump(part.kind, part.take); err != nil {
			return nil, nil, fmt.Errorf("read the networks of this host: %w", err)
		}
	}
	return out.own, out.near, nil
}

var errChanging = errors.New("they change faster than they can be read")

// dump reads a whole list. Entries of one that changed meanwhile stay: they were true a moment ago, and err on the
// side of too much.
func (r *rtnetlink) dump(kind uint16, take func([]byte) error) error {
	for range tries {
		whole, err := r.dumpOnce(kind, take)
		if whole || err != nil {
			return err
		}
	}
	return errChanging
}

func (r *rtnetlink) dumpOnce(kind uint16, take func([]byte) error) (whole bool, err error) {
	r.sequence++
	request := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg) // the family stays 0, which is all of them
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], kind)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(request[8:], r.sequence)
	if err := unix.Sendto(r.ask, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, os.NewSyscallError("sendto", err)
	}
	whole = true
	var unread error
	for {
		n, from, err := unix.Recvfrom(r.ask, r.piece, unix.MSG_TRUNC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, os.NewSyscallError("recvfrom", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel
		}
		if n > len(r.piece) {
			return false, errors.New("a message is too long")
		}
		messages, err := syscall.ParseNetlinkMessage(r.piece[:n])
		if err != nil {
			return false, err
		}
		for _, m := range messages {
			if m.Header.Seq != r.sequence {
				continue // the rest of a list that was given up
			}
			if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				whole = false
			}
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return whole, unread
			case unix.NLMSG_ERROR:
				return false, refusal(m.Data)
			default:
				// Read to its end all the same: the kernel begins no other list before.
				if err := take(m.Data); err != nil {
					unread = err
				}
			}
		}
	}
}

func refusal(data []byte) error {
	if len(data) < 4 {
		return errCut
	}
	return os.NewSyscallError("netlink", syscall.Errno(-int32(binary.NativeEndian.Uint32(data))))
}

var errCut = errors.New("a message is too short")

// found collects the lists.
type found struct{ own, near []netip.Prefix }

// attributes calls for each attribute; one that is malformed is an error, because what it says is not known.
func attributes(data []byte, take func(kind uint16, value []byte)) error {
	for len(data) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtAttr || size > len(data) {
			return errCut
		}
		take(binary.NativeEndian.Uint16(data[2:])&typeMask, data[unix.SizeofRtAttr:size])
		data = data[min(len(data), (size+3)&^3):]
	}
	return nil
}

// address reads a message about an address of an interface.
func (f *found) address(data []byte) error {
	if len(data) < unix.SizeofIfAddrmsg {
		return errCut
	}
	bits := int(data[1])
	var local, address netip.Addr
	if err := attributes(data[unix.SizeofIfAddrmsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_ADDRESS: // of a point-to-point line, the other end
			address, _ = netip.AddrFromSlice(value)
		}
	}); err != nil {
		return err
	}
	if !address.IsValid() {
		address = local
	}
	if !local.IsValid() {
		local = address
	}
	if local.IsValid() {
		f.own = append(f.own, single(local))
		f.near = append(f.near, single(address), netip.PrefixFrom(address, bits))
	}
	return nil
}

// route reads a message about a route, of any table.
func (f *found) route(data []byte) error {
	if len(data) < unix.SizeofRtMsg {
		return errCut
	}
	family, bits, kind := data[0], int(data[1]), data[7]
	if binary.NativeEndian.Uint32(data[8:])&unix.RTM_F_CLONED != 0 {
		return nil // remembered of a connection, and no route
	}
	to := netip.IPv4Unspecified()
	switch family {
	case unix.AF_INET:
	case unix.AF_INET6:
		to = netip.IPv6Unspecified()
	default:
		return nil // of neither kind of address
	}
	routed := false
	var several []byte
	err := attributes(data[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			to, _ = netip.AddrFromSlice(value)
		case unix.RTA_MULTIPATH:
			several = value
		default:
			routed = f.router(kind, value) || routed
		}
	})
	if err != nil {
		return err
	}
	all, err := f.hops(several)
	if err != nil {
		return err
	}
	routed = routed || len(several) > 0 && all
	prefix := netip.PrefixFrom(to, bits)
	switch kind {
	case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST:
		f.own = append(f.own, prefix)
	case unix.RTN_UNICAST:
		if !routed {
			f.near = append(f.near, prefix)
		}
	}
	return nil
}

// router notes the address of a router, and says whether the attribute is one.
func (f *found) router(kind uint16, value []byte) bool {
	switch kind {
	case unix.RTA_GATEWAY:
	case unix.RTA_VIA: // of the other family, which stands before it
		value = value[min(2, len(value)):]
	default:
		return false
	}
	a, ok := netip.AddrFromSlice(value)
	if ok && !a.IsUnspecified() {
		f.near = append(f.near, single(a))
	}
	return ok && !a.IsUnspecified()
}

// hops reads the ways of a route that has several, and says whether all of them lead to a router.
func (f *found) hops(data []byte) (all bool, err error) {
	all = true
	for len(data) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtNexthop || size > len(data) {
			return false, errCut
		}
		routed := false
		if err := attributes(data[unix.SizeofRtNexthop:size], func(kind uint16, value []byte) {
			routed = f.router(kind, value) || routed
		}); err != nil {
			return false, err
		}
		all = all && routed
		data = data[min(len(data), (size+3)&^3):]
	}
	return all, nil
}

package hostserver

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// portOwner says which user listens on a port, and which process when that may be seen. It is for an error's text.
func portOwner(at netip.AddrPort) string {
	uid, inode, ok := listener(at)
	if !ok {
		return "who it is cannot be seen"
	}
	who := "a process of the user with the id " + uid
	links, err := filepath.Glob("/proc/[0-9]*/fd/*") // those of other users are not listed
	if err != nil {
		return who
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		pid := strings.Split(link, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return who
		}
		return fmt.Sprintf("%s (process %s) of the user with the id %s", strings.TrimSpace(cut(string(name))), pid, uid)
	}
	return who
}

// Owner is the id of the user who listens on a port; ok is false where that cannot be seen.
func Owner(at netip.AddrPort) (uid int, ok bool) {
	text, _, ok := listener(at)
	if !ok {
		return 0, false
	}
	uid, err := strconv.Atoi(text)
	return uid, err == nil
}

// fromUser says whether the other end of a connection on this machine is a socket of the user. One that is not listed is
// nobody's.
func fromUser(conn net.Conn, uid int) bool {
	local, err1 := netip.ParseAddrPort(conn.LocalAddr().String())
	remote, err2 := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err1 != nil || err2 != nil {
		return false
	}
	// As the kernel lists them: IPv4 in a list of its own, and mapped in that of IPv6.
	ends := func(at netip.AddrPort) (short, long string) {
		six, port := at.Addr().As16(), fmt.Sprintf(":%04X", at.Port())
		long = words(six[:]) + port
		if at.Addr().Unmap().Is4() {
			four := at.Addr().Unmap().As4()
			short = words(four[:]) + port
		}
		return short, long
	}
	shortFrom, longFrom := ends(remote)
	shortTo, longTo := ends(local)
	for _, list := range [][3]string{{"/proc/net/tcp", shortFrom, shortTo}, {"/proc/net/tcp6", longFrom, longTo}} {
		if owner, ok := connected(list[0], list[1], list[2]); ok {
			return owner == strconv.Itoa(uid)
		}
	}
	return false
}

// connected looks up whose the socket of a connection is, by its own end and the other.
func connected(path, from, to string) (uid string, ok bool) {
	each(path, func(fields []string) bool {
		if fields[1] == from && fields[2] == to && fields[3] == established {
			uid, ok = fields[7], true
		}
		return !ok
	})
	return uid, ok
}

// listener finds a listening socket in the kernel's lists (proc(5)). The one that takes a connection to an address is on
// that address, or on all: the latter also in the list of IPv6, whose sockets may take IPv4 besides.
func listener(at netip.AddrPort) (uid, inode string, ok bool) {
	six := at.Addr().As16() // of IPv4 it is the mapped one
	port := fmt.Sprintf(":%04X", at.Port())
	all6 := strings.Repeat("0", 32) + port
	if !at.Addr().Is4() {
		return listed("/proc/net/tcp6", words(six[:])+port, all6)
	}
	four := at.Addr().As4()
	for _, list := range []struct{ path, address string }{
		{"/proc/net/tcp", words(four[:]) + port}, {"/proc/net/tcp6", words(six[:]) + port},
		{"/proc/net/tcp", "00000000" + port}, {"/proc/net/tcp6", all6},
	} {
		if uid, inode, ok = listed(list.path, list.address); ok {
			return uid, inode, true
		}
	}
	return "", "", false
}

// words is an address as the kernel lists it: in words of its own byte order.
func words(address []byte) (text string) {
	for n := 0; n < len(address); n += 4 {
		text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(address[n:]))
	}
	return text
}

// listed looks a listening socket up in one list, by any of its addresses.
func listed(path string, addresses ...string) (uid, inode string, ok bool) {
	each(path, func(fields []string) bool {
		if slices.Contains(addresses, fields[1]) && fields[3] == listening {
			if _, err := strconv.Atoi(fields[7]); err == nil {
				uid, inode, ok = fields[7], fields[9], true
			}
		}
		return !ok
	})
	return uid, inode, ok
}

// States of a socket in the kernel's lists.
const established, listening = "01", "0A"

// each goes through the sockets of one list, until use says that it was enough.
func each(path string, use func(fields []string) bool) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close() // only read from
	const limit = 100_000
	lines := bufio.NewScanner(f)
	for n := 0; n < limit && lines.Scan(); n++ {
		if fields := strings.Fields(lines.Text()); len(fields) > 9 && !use(fields) {
			return
		}
	}
}

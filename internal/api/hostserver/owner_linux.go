package hostserver

import (
	"bufio"
	"encoding/binary"
	"fmt"
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
	f, err := os.Open(path)
	if err != nil {
		return "", "", false
	}
	defer f.Close() // only read from
	const listening, most = "0A", 100_000
	lines := bufio.NewScanner(f)
	for n := 0; n < most && lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && slices.Contains(addresses, fields[1]) && fields[3] == listening {
			if _, err := strconv.Atoi(fields[7]); err == nil {
				return fields[7], fields[9], true
			}
		}
	}
	return "", "", false
}

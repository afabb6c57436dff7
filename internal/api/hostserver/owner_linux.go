package hostserver

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
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

// listener finds a listening socket in the kernel's list (proc(5)).
func listener(at netip.AddrPort) (uid, inode string, ok bool) {
	path, text := "/proc/net/tcp", ""
	if a := at.Addr(); a.Is4() {
		b := a.As4()
		text = fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b[:]))
	} else {
		path = "/proc/net/tcp6"
		b := a.As16()
		for n := 0; n < len(b); n += 4 {
			text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b[n:]))
		}
	}
	text += ":" + fmt.Sprintf("%04X", at.Port())
	any := strings.Repeat("0", strings.IndexByte(text, ':')) + text[strings.IndexByte(text, ':'):]
	f, err := os.Open(path)
	if err != nil {
		return "", "", false
	}
	defer f.Close() // only read from
	const listening, most = "0A", 100_000
	lines := bufio.NewScanner(f)
	for n := 0; n < most && lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && (fields[1] == text || fields[1] == any) && fields[3] == listening {
			if _, err := strconv.Atoi(fields[7]); err == nil {
				return fields[7], fields[9], true
			}
		}
	}
	return "", "", false
}

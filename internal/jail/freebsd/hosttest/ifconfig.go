//go:build linux

package hosttest

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// interfaceLength is IFNAMSIZ without its NUL.
const interfaceLength = 15

// ifconfig is ifconfig(8): an interface and words, each of which does something.
func (c *command) ifconfig() (int, error) {
	args, vnet := c.args, 0
	if len(args) > 1 && args[0] == "-j" {
		j := c.prison(args[1], false)
		if j == nil {
			return c.fail(1, "jail not found: No such file or directory"), nil
		}
		if j.VNet {
			vnet = j.JID
		}
		args = args[2:]
	}
	switch {
	case len(args) == 0 || args[0] == "-a":
		for _, i := range c.Ifaces {
			if i.VNet == vnet {
				c.show(i)
			}
		}
		return 0, nil
	case args[0] == "-l":
		var list []string
		for _, i := range c.Ifaces {
			if i.VNet == vnet {
				list = append(list, i.Name)
			}
		}
		fmt.Fprintln(&c.out, strings.Join(list, " "))
		return 0, nil
	case args[0] == "-g":
		if len(args) != 2 {
			return c.ifconfigUsage(), nil
		}
		for _, i := range c.Ifaces {
			if i.VNet == vnet && slices.Contains(i.Groups, args[1]) {
				fmt.Fprintln(&c.out, i.Name)
			}
		}
		return 0, nil
	case strings.HasPrefix(args[0], "-"):
		return c.ifconfigUsage(), nil
	}
	name, words := args[0], args[1:]
	var i *iface
	if len(words) > 0 && (words[0] == "create" || words[0] == "plumb") {
		made, status := c.createInterface(name, vnet)
		if made == nil {
			return status, nil
		}
		if words = words[1:]; made.Name != name && !(len(words) > 0 && words[0] == "name") {
			fmt.Fprintln(&c.out, made.Name)
		}
		i = made
	} else if i = c.iface(name, vnet); i == nil {
		return c.fail(1, "interface %s does not exist", name), nil
	}
	if len(args) == 1 {
		c.show(i)
		return 0, nil
	}
	return c.configure(i, words)
}

func (c *command) ifconfigUsage() int {
	return c.say(1, "usage: ifconfig [-j jail] [-f type:format] %%sinterface address_family\n                [address [dest_address]] [parameters]\n       ifconfig interface create\n       ifconfig -a [-d] [-m] [-u] [-v] [address_family]\n       ifconfig -l [-d] [-u] [address_family]\n       ifconfig [-d] [-m] [-u] [-v]")
}

// createInterface makes an interface of a cloner: an epair is two.
func (c *command) createInterface(name string, vnet int) (*iface, int) {
	driver := strings.TrimRight(name, "0123456789")
	if driver != "epair" && driver != "bridge" {
		return nil, c.fail(1, "SIOCIFCREATE2 (%s): Invalid argument", name)
	}
	unit := 0
	taken := func(u int) bool {
		return slices.ContainsFunc(c.Ifaces, func(i *iface) bool { return i.Driver == driver && i.Unit == u })
	}
	if text := strings.TrimPrefix(name, driver); text != "" {
		if _, err := fmt.Sscan(text, &unit); err != nil || taken(unit) {
			return nil, c.fail(1, "SIOCIFCREATE2 (%s): File exists", name)
		}
	} else {
		for taken(unit) {
			unit++
		}
	}
	ether := func(half string) string {
		sum := sha256.Sum256([]byte(fmt.Sprint(c.Dir, driver, unit, half)))
		return fmt.Sprintf("58:9c:fc:%02x:%02x:%02x", sum[0], sum[1], sum[2])
	}
	if driver == "bridge" {
		i := &iface{Name: fmt.Sprintf("bridge%d", unit), Driver: driver, Unit: unit, VNet: vnet, Ether: ether(""), Groups: []string{"bridge"}, NoInet6: true}
		c.Ifaces = append(c.Ifaces, i)
		return i, 0
	}
	for _, half := range []string{"a", "b"} {
		n := fmt.Sprintf("epair%d%s", unit, half)
		if c.iface(n, vnet) != nil {
			return nil, c.fail(1, "SIOCIFCREATE2 (%s): File exists", name)
		}
		c.Ifaces = append(c.Ifaces, &iface{Name: n, Driver: driver, Unit: unit, VNet: vnet, Peer: half, Ether: ether(half), Groups: []string{"epair"}})
	}
	return c.iface(fmt.Sprintf("epair%da", unit), vnet), 0
}

// configure does what the words after an interface say, in order, until one fails.
func (c *command) configure(i *iface, words []string) (int, error) {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		next := func() (string, bool) {
			if len(words) == 0 {
				return "", false
			}
			v := words[0]
			words = words[1:]
			return v, true
		}
		value, given := "", true
		switch word {
		case "name", "ether", "link", "lladdr", "description", "descr", "addm", "deletem", "private", "-private", "vnet", "-vnet", "group", "-group", "mtu":
			value, given = next()
		}
		if !given {
			return c.fail(1, "'%s' requires argument", word), nil
		}
		status := 0
		switch word {
		case "destroy", "unplumb":
			return c.destroyInterface(i), nil
		case "up":
			i.Up = true
		case "down":
			i.Up = false
		case "name":
			status = c.rename(i, value)
		case "ether", "link", "lladdr":
			mac, err := net.ParseMAC(value)
			if err != nil || len(mac) != 6 {
				return c.fail(1, "malformed link-level address"), nil
			}
			if mac[0]&1 != 0 {
				return c.fail(1, "ioctl (SIOCSIFLLADDR): Invalid argument"), nil
			}
			if i.Hw == "" {
				i.Hw = i.Ether
			}
			i.Ether = mac.String()
		case "description", "descr":
			i.Description = value
		case "-description", "-descr":
			i.Description = ""
		case "group":
			if value[len(value)-1] >= '0' && value[len(value)-1] <= '9' {
				return c.fail(1, "setifgroup: group names may not end in a digit"), nil
			}
			if slices.Contains(i.Groups, value) {
				return c.fail(1, "SIOCAIFGROUP: File exists"), nil
			}
			i.Groups = append(i.Groups, value)
		case "-group":
			i.Groups = without(i.Groups, value)
		case "mtu":
		case "addm", "deletem", "private", "-private":
			status = c.bridge(i, word, value)
		case "vnet":
			j := c.prison(value, false)
			if j == nil {
				return c.fail(1, "jail %q not found", value), nil
			}
			status = c.moveInto(i, j)
		case "-vnet":
			status = c.reclaim(i.Name, value)
		case "inet":
			used, s, err := c.address(i, words)
			if err != nil {
				return broken, err
			}
			words, status = words[used:], s
		case "inet6":
			if len(words) == 0 || words[0] != "ifdisabled" && words[0] != "-ifdisabled" && words[0] != "-auto_linklocal" && words[0] != "-accept_rtadv" {
				return broken, fmt.Errorf("inet6 %v is not modelled", words)
			}
			for len(words) > 0 && strings.Contains("ifdisabled -ifdisabled -auto_linklocal -accept_rtadv", words[0]) {
				if words[0] == "ifdisabled" {
					i.NoInet6 = true
				}
				words = words[1:]
			}
		case "alias", "-alias", "delete":
			return c.fail(1, "%s: bad value", word), nil
		default:
			return c.fail(1, "%s: bad value", word), nil
		}
		if status != 0 {
			return status, nil
		}
	}
	return 0, nil
}

func (c *command) rename(i *iface, name string) int {
	switch {
	case len(name) > interfaceLength:
		return c.fail(1, "ioctl SIOCSIFNAME (set name): File name too long")
	case name == "" || strings.ContainsAny(name, "/ \t"):
		return c.fail(1, "ioctl SIOCSIFNAME (set name): Invalid argument")
	case c.iface(name, i.VNet) != nil:
		// What `create name` made stays, and only its standard output says what it is called.
		if i.Name != c.args[0] {
			fmt.Fprintln(&c.out, i.Name)
		}
		return c.fail(1, "ioctl SIOCSIFNAME (set name): File exists")
	}
	for _, b := range c.Ifaces {
		for k := range b.Members {
			if b.VNet == i.VNet && b.Members[k].Name == i.Name {
				b.Members[k].Name = name
			}
		}
	}
	i.Name = name
	fmt.Fprintln(&c.out, name)
	return 0
}

func (c *command) bridge(i *iface, word, name string) int {
	at := slices.IndexFunc(i.Members, func(m member) bool { return m.Name == name })
	label := map[string]string{"addm": "BRDGADD", "deletem": "BRDGDEL"}[word]
	switch {
	case i.Driver != "bridge":
		return c.fail(1, "%s %s: Invalid argument", label, name)
	case c.iface(name, i.VNet) == nil:
		if label == "" {
			return c.fail(1, "unable to get bridge flags: No such file or directory")
		}
		return c.fail(1, "%s %s: No such file or directory", label, name)
	case word == "addm" && at >= 0:
		return c.fail(1, "BRDGADD %s: File exists (Interface is already a member of this bridge)", name)
	case word == "addm":
		for _, b := range c.Ifaces {
			if slices.ContainsFunc(b.Members, func(m member) bool { return m.Name == name }) && b.VNet == i.VNet {
				return c.fail(1, "BRDGADD %s: Device busy (Interface is already a member of another bridge)", name)
			}
		}
		i.Members = append(i.Members, member{Name: name})
	case at < 0 && word == "deletem":
		return c.fail(1, "BRDGDEL %s: No such file or directory (Interface is not a bridge member)", name)
	case at < 0:
		return c.fail(1, "unable to get bridge flags: No such file or directory")
	case word == "deletem":
		i.Members = slices.Delete(i.Members, at, at+1)
	default:
		i.Members[at].Private = word == "private"
	}
	return 0
}

// destroyInterface removes an interface, with its other half wherever that is.
func (c *command) destroyInterface(i *iface) int {
	if i.Driver != "epair" && i.Driver != "bridge" {
		return c.fail(1, "SIOCIFDESTROY: Invalid argument")
	}
	for _, gone := range slices.Clone(c.Ifaces) {
		if gone == i || i.Driver == "epair" && gone.Driver == "epair" && gone.Unit == i.Unit {
			c.Ifaces = without(c.Ifaces, gone)
			c.leaveBridges(gone)
		}
	}
	return 0
}

func (s *state) leaveBridges(i *iface) {
	for _, b := range s.Ifaces {
		if b.VNet == i.VNet {
			b.Members = slices.DeleteFunc(b.Members, func(m member) bool { return m.Name == i.Name })
		}
	}
}

// toVNet is what jail(8) does for vnet.interface.
func (c *command) toVNet(name string, j *prison) int {
	i := c.iface(name, 0)
	if i == nil {
		return c.say(1, "ifconfig: interface %s does not exist", name)
	}
	return c.moveInto(i, j)
}

// moveInto gives an interface to the network of a jail. It keeps its name and description, and loses its addresses and the
// groups that it was put into.
func (c *command) moveInto(i *iface, j *prison) int {
	if !j.VNet {
		return c.say(1, "ifconfig: SIOCSIFVNET: Operation not permitted")
	}
	if c.iface(i.Name, j.JID) != nil {
		return c.say(1, "ifconfig: SIOCSIFVNET: File exists")
	}
	c.leaveBridges(i)
	i.moved(j.JID)
	return 0
}

func (c *command) reclaim(name, jail string) int {
	j := c.prison(jail, false)
	if j == nil {
		return c.fail(1, "jail %q not found", jail)
	}
	i := c.iface(name, j.JID)
	if i == nil {
		return c.fail(1, "SIOCSIFRVNET: Device not configured")
	}
	i.leave()
	return 0
}

func (i *iface) leave() { i.moved(0) }

func (i *iface) moved(vnet int) {
	i.VNet, i.Inet, i.Up = vnet, nil, false
	i.Groups = []string{i.Driver}
}

// address is "inet ADDR[/BITS] [netmask M] [alias|-alias]". An address of a jail becomes one of its real loopback.
func (c *command) address(i *iface, words []string) (used int, status int, err error) {
	if len(words) == 0 {
		return 0, c.fail(1, "inet: bad value"), nil
	}
	text := words[0]
	used = 1
	prefix, bad := netip.ParsePrefix(text)
	if bad != nil {
		addr, bad := netip.ParseAddr(text)
		if bad != nil || !addr.Is4() {
			return used, c.fail(1, "%s: bad value", text), nil
		}
		prefix = netip.PrefixFrom(addr, 8)
	}
	if !prefix.Addr().Is4() {
		return used, c.fail(1, "%s: bad value", text), nil
	}
	remove := false
	for used < len(words) {
		switch words[used] {
		case "netmask":
			mask, bad := netip.ParseAddr(words[min(used+1, len(words)-1)])
			if bad != nil || !mask.Is4() {
				return used, c.fail(1, "netmask: bad value"), nil
			}
			bits, _ := net.IPMask(mask.AsSlice()).Size()
			prefix = netip.PrefixFrom(prefix.Addr(), bits)
			used += 2
			continue
		case "alias", "add":
			used++
			continue
		case "-alias", "delete", "remove":
			remove = true
			used++
			continue
		}
		break
	}
	if remove {
		if !slices.Contains(i.Inet, prefix.String()) {
			return used, c.fail(1, "ioctl (SIOCDIFADDR): Can't assign requested address"), nil
		}
		i.Inet = without(i.Inet, prefix.String())
		return used, 0, nil
	}
	if slices.Contains(i.Inet, prefix.String()) {
		return used, 0, nil
	}
	i.Inet, i.Up = append(i.Inet, prefix.String()), true // an address brings an interface up
	if i.VNet != 0 {
		return used, 0, c.loopback(i.VNet, prefix.Addr(), len(i.Inet))
	}
	return used, 0, nil
}

// loopback gives the real network of a jail an address.
func (s *state) loopback(jid int, addr netip.Addr, n int) error {
	j := s.prison(fmt.Sprint(jid), false)
	if j == nil {
		return nil
	}
	f, err := os.Open(s.space(j, "net"))
	if err != nil {
		return err
	}
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }() // it carried two requests
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, up); err != nil {
		return err
	}
	if addr.IsLoopback() {
		return nil // it came with the interface
	}
	alias, err := unix.NewIfreq(fmt.Sprintf("lo:%d", n))
	if err != nil {
		return err
	}
	if err := alias.SetInet4Addr(addr.AsSlice()); err != nil {
		return err
	}
	return unix.IoctlIfreq(socket, unix.SIOCSIFADDR, alias)
}

// show prints an interface as ifconfig(8) of FreeBSD 15 does.
func (c *command) show(i *iface) {
	words, flags := []string{"BROADCAST"}, 0x8802
	switch {
	case i.Driver == "lo":
		words, flags = []string{"LOOPBACK"}, 0x8008
	case i.Up:
		words = append(words, "RUNNING")
		flags |= 0x40
	}
	if i.Up {
		words, flags = append([]string{"UP"}, words...), flags|1
	}
	bridged := slices.ContainsFunc(c.Ifaces, func(b *iface) bool {
		return b.VNet == i.VNet && slices.ContainsFunc(b.Members, func(m member) bool { return m.Name == i.Name })
	})
	if bridged {
		words, flags = append(words, "PROMISC"), flags|0x100
	}
	mtu := 1500
	if i.Driver == "lo" {
		mtu = 16384
		words = append(words, "MULTICAST")
	} else {
		words = append(words, "SIMPLEX", "MULTICAST")
	}
	fmt.Fprintf(&c.out, "%s: flags=%x<%s> metric 0 mtu %d\n", i.Name, flags, strings.Join(words, ","), mtu)
	if i.Description != "" {
		fmt.Fprintf(&c.out, "\tdescription: %s\n", i.Description)
	}
	if i.Ether != "" {
		fmt.Fprintf(&c.out, "\tether %s\n", i.Ether)
	}
	if i.Hw != "" && i.Hw != i.Ether {
		fmt.Fprintf(&c.out, "\thwaddr %s\n", i.Hw)
	}
	for _, text := range i.Inet {
		p := netip.MustParsePrefix(text)
		mask := uint32(0xffffffff) << (32 - p.Bits())
		fmt.Fprintf(&c.out, "\tinet %s netmask 0x%08x", p.Addr(), mask)
		if i.Driver != "lo" {
			b := p.Addr().As4()
			for k := range b {
				b[k] |= ^byte(mask >> (24 - 8*k))
			}
			fmt.Fprintf(&c.out, " broadcast %s", netip.AddrFrom4(b))
		}
		fmt.Fprintln(&c.out)
	}
	for _, m := range i.Members {
		flags, names := 0x143, "LEARNING,DISCOVER,AUTOEDGE,AUTOPTP"
		if m.Private {
			flags, names = 0x943, "LEARNING,DISCOVER,AUTOEDGE,AUTOPTP,PRIVATE"
		}
		fmt.Fprintf(&c.out, "\tmember: %s flags=%x<%s>\n", m.Name, flags, names)
	}
	fmt.Fprintf(&c.out, "\tgroups: %s\n", strings.Join(i.Groups, " "))
	if i.Driver == "epair" {
		fmt.Fprintf(&c.out, "\tmedia: Ethernet 10Gbase-T (10Gbase-T <full-duplex>)\n\tstatus: active\n")
	}
	nd6 := "nd6 options=21<PERFORMNUD,AUTO_LINKLOCAL>"
	if i.NoInet6 {
		nd6 = "nd6 options=29<PERFORMNUD,IFDISABLED,AUTO_LINKLOCAL>"
	}
	fmt.Fprintf(&c.out, "\t%s\n", nd6)
}

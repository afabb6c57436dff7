//go:build linux

package linux

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// A jail's group lets its processes use no devices but those of its /dev. No mount of a jail but the read-only /dev lets
// devices work either: each is there for the case that the other fails. Of version 1 the filter is a controller, of version 2 a
// program in the kernel (Documentation/admin-guide/cgroup-v2.rst, "Device controller").

// charDevices are the numbers of null, zero, full, random, urandom and tty.
func charDevices() [][2]int64 { return [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}} }

// filterDevices takes all other devices from a jail's group.
func (l *Limiter) filterDevices(name string) error {
	if l.Version() == 2 {
		if err := l.attach(l.group(l.memory, name)); err != nil {
			return problem.Wrap(err, problem.Unsupported, "let the host daemon have CAP_BPF and CAP_NET_ADMIN, and the kernel CONFIG_CGROUP_BPF",
				"the devices of a control group cannot be filtered")
		}
		return nil
	}
	dir := l.group(l.devices, name)
	if err := writeGroupText(dir, "devices.deny", "a"); err != nil {
		return err
	}
	for _, d := range charDevices() {
		if err := writeGroupText(dir, "devices.allow", fmt.Sprintf("c %d:%d rwm", d[0], d[1])); err != nil {
			return err
		}
	}
	return nil
}

// devicesFiltered says whether a process is in its jail's group, and that has a filter.
func (l *Limiter) devicesFiltered(name string, pid int) (bool, error) {
	h := l.devices
	if l.Version() == 2 {
		h = l.memory
	}
	pids, err := readPIDs(l.group(h, name))
	if err != nil || !slices.Contains(pids, pid) {
		return false, err
	}
	if l.Version() == 2 {
		return l.attached(l.group(h, name))
	}
	list, err := readGroupText(l.group(h, name), "devices.list")
	return err == nil && filters(list), err
}

// filters says whether the list of a group of version 1 lets no device but a jail's be read or written. runc adds what may be
// made, the terminals of a jail's own devpts and, before its version 1.2, the tun device, of which no jail has a node that works.
func filters(list string) bool {
	may := append(charDevices(), [][2]int64{{5, 2}, {10, 200}}...)
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] != "a" && f[2] == "m" || len(f) == 3 && f[0] == "c" && f[1] == "136:*" {
			continue
		}
		if len(f) != 3 || f[0] != "c" || !slices.ContainsFunc(may, func(d [2]int64) bool { return f[1] == fmt.Sprintf("%d:%d", d[0], d[1]) }) {
			return false
		}
	}
	return true
}

// deviceFilter is the program: it is given the kind of access and of device, and both numbers of it.
func deviceFilter() asm.Instructions {
	const char = 2 // BPF_DEVCG_DEV_CHAR
	out := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.And.Imm(asm.R2, 0xffff), asm.JNE.Imm(asm.R2, char, "refuse"),
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), asm.LoadMem(asm.R4, asm.R1, 8, asm.Word),
	}
	for _, d := range charDevices() {
		next := fmt.Sprintf("not %d:%d", d[0], d[1])
		out = append(out, asm.JNE.Imm(asm.R3, int32(d[0]), next), asm.JNE.Imm(asm.R4, int32(d[1]), next),
			asm.Mov.Imm(asm.R0, 1), asm.Return(), asm.Mov.Imm(asm.R0, 0).WithSymbol(next))
	}
	return append(out, asm.Mov.Imm(asm.R0, 0).WithSymbol("refuse"), asm.Return())
}

// attachFilter puts the program into a group of version 2, where it stays as long as the group.
func attachFilter(dir string) error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "clawjail_devices", Type: ebpf.CGroupDevice, License: "Dual BSD/GPL", Instructions: deviceFilter()})
	if err != nil {
		return fmt.Errorf("load the filter of devices: %w", err)
	}
	err = inGroup(dir, func(group int) error {
		return link.RawAttachProgram(link.RawAttachProgramOptions{Target: group, Program: prog, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI})
	})
	return errors.Join(err, prog.Close())
}

// filterAttached says whether a group of version 2 has a program for devices.
func filterAttached(dir string) (is bool, err error) {
	err = inGroup(dir, func(group int) error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: group, Attach: ebpf.AttachCGroupDevice})
		is = err == nil && len(found.Programs) > 0
		return err
	})
	return is, err
}

func inGroup(dir string, do func(fd int) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the control group: %w", err)
	}
	return errors.Join(do(fd), unix.Close(fd))
}

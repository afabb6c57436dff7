//go:build linux

package linux

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestTheLimitOnCoreFilesStays(t *testing.T) {
	var raw []bpf.RawInstruction
	for _, one := range coreFilter(unix.AUDIT_ARCH_X86_64) {
		raw = append(raw, bpf.RawInstruction{Op: one.Code, Jt: one.Jt, Jf: one.Jf, K: one.K})
	}
	program, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("it cannot be read")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	const allow, pretend, refuse = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_ERRNO | int(unix.ENOSYS)
	for name, c := range map[string]struct {
		arch, number uint32
		arguments    [3]uint64
		want         int
	}{
		"another system call":         {unix.AUDIT_ARCH_X86_64, unix.SYS_READ, [3]uint64{0, unix.RLIMIT_CORE, 1}, allow},
		"setrlimit of core files":     {unix.AUDIT_ARCH_X86_64, unix.SYS_SETRLIMIT, [3]uint64{unix.RLIMIT_CORE, 1}, pretend},
		"with other upper bits":       {unix.AUDIT_ARCH_X86_64, unix.SYS_SETRLIMIT, [3]uint64{7<<32 | unix.RLIMIT_CORE, 1}, pretend},
		"setrlimit of open files":     {unix.AUDIT_ARCH_X86_64, unix.SYS_SETRLIMIT, [3]uint64{unix.RLIMIT_NOFILE, 1}, allow},
		"prlimit of core files":       {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [3]uint64{0, unix.RLIMIT_CORE, 0x7fff00000000}, pretend},
		"from a low address":          {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [3]uint64{0, unix.RLIMIT_CORE, 0x1000}, pretend},
		"a question for it":           {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [3]uint64{0, unix.RLIMIT_CORE, 0}, allow},
		"prlimit of another":          {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [3]uint64{unix.RLIMIT_CORE, unix.RLIMIT_NOFILE, 1}, allow},
		"by numbers of 32 bits":       {unix.AUDIT_ARCH_I386, 75, [3]uint64{unix.RLIMIT_CORE, 1}, refuse},
		"by numbers of x32":           {unix.AUDIT_ARCH_X86_64, 0x40000000 | unix.SYS_SETRLIMIT, [3]uint64{unix.RLIMIT_CORE, 1}, refuse},
		"another one by those of x32": {unix.AUDIT_ARCH_X86_64, 0x40000000, [3]uint64{}, refuse},
	} {
		// The machine of the package reads words as networks write them.
		data := binary.BigEndian.AppendUint32(nil, c.number)
		data = binary.BigEndian.AppendUint32(data, c.arch)
		data = append(data, make([]byte, 8)...)
		for _, a := range c.arguments {
			data = binary.BigEndian.AppendUint32(data, uint32(a)) // the lower half first, as here
			data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
		}
		if got, err := vm.Run(data); err != nil || got != c.want {
			t.Errorf("%s: %#x, %v, not %#x", name, got, err, c.want)
		}
	}
}

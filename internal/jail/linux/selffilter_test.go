//go:build linux

package linux

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filterAnswers runs a filter with system calls, and says what it answers.
func filterAnswers(t *testing.T, filter []unix.SockFilter) func(arch, number uint32, arguments ...uint64) int {
	t.Helper()
	var raw []bpf.RawInstruction
	for _, one := range filter {
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
	return func(arch, number uint32, arguments ...uint64) int {
		// The machine of the package reads words as networks write them.
		data := binary.BigEndian.AppendUint32(nil, number)
		data = binary.BigEndian.AppendUint32(data, arch)
		data = append(data, make([]byte, 8)...)
		for n := range 6 {
			a := uint64(0)
			if n < len(arguments) {
				a = arguments[n]
			}
			data = binary.BigEndian.AppendUint32(data, uint32(a)) // the lower half first, as here
			data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
		}
		got, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

func TestTheLimitOnCoreFilesStays(t *testing.T) {
	ask := filterAnswers(t, coreFilter(unix.AUDIT_ARCH_X86_64))
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
		if got := ask(c.arch, c.number, c.arguments[:]...); got != c.want {
			t.Errorf("%s: %#x, not %#x", name, got, c.want)
		}
	}
}

func TestSocketsThatCouldHaveAnAddressAreRefused(t *testing.T) {
	ask := filterAnswers(t, socketFilter())
	const allow, refuse = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | int(unix.EPERM)
	for name, c := range map[string]struct {
		number, family, kind uint32
		want                 int
	}{
		"a stream":                 {unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, refuse},
		"datagrams":                {unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM, refuse},
		"TCP":                      {unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, allow},
		"a pair of streams":        {unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, allow},
		"a pair of packets":        {unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_SEQPACKET, allow},
		"a pair of datagrams":      {unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, refuse},
		"a raw pair":               {unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_RAW, refuse},
		"a pair of another family": {unix.SYS_SOCKETPAIR, unix.AF_INET, unix.SOCK_DGRAM, allow},
		"another system call":      {unix.SYS_CONNECT, unix.AF_UNIX, unix.SOCK_STREAM, allow},
	} {
		if got := ask(unix.AUDIT_ARCH_X86_64, c.number, uint64(c.family), uint64(c.kind)); got != c.want {
			t.Errorf("%s: %#x, not %#x", name, got, c.want)
		}
	}
}

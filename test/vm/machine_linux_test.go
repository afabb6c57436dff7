//go:build vm

package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/test/vm/wire"
)

const (
	// bootLimit only catches what hangs: an emulated guest starts in ten seconds, on a very busy host in several minutes.
	bootLimit = 15 * time.Minute
	// accelerated is how long a guest may take to start with the help of the processor before it is emulated.
	accelerated = 45 * time.Second
	// stageLimit bounds what an emulated guest does for its own image.
	stageLimit = time.Hour
	// usualBoot is how long a guest takes to start on a machine with nothing else to do, and maxPace by how much limits grow.
	usualBoot = 20 * time.Second
	maxPace   = 4
	// commandLimit bounds a command that says nothing else, in a guest that has started in the usual time.
	commandLimit = 10 * time.Minute
)

// machine is a guest with a disk of its own. It is off, or its agent answers.
type machine struct {
	t     *testing.T
	guest guest
	dir   string   // its disk, its ports
	disks []string // images besides; what is written to them is forgotten with each start
	keeps string   // an image that keeps what is written to it, if any
	qemu  *exec.Cmd
	ended chan error // how QEMU ended
	port  *port
	about string   // what it is, in words
	pace  float64  // how many times longer than usual it takes
	words string   // more words on the kernel's command line
	more  []string // more arguments of QEMU
}

// newMachine makes a machine that is off. It is taken away with the test.
func newMachine(t *testing.T, g guest, disks ...string) *machine {
	t.Helper()
	m := &machine{t: t, guest: g, dir: t.TempDir(), disks: disks, about: g.suite + ", " + g.arch}
	if err := run("qemu-img", "create", "-q", "-f", "qcow2", "-b", filepath.Join(g.dir, "root.img"), "-F", "raw", m.root(), "12G"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the guest's console:\n%s", m.console())
		}
		m.cut()
	})
	return m
}

func (m *machine) root() string { return filepath.Join(m.dir, "root.qcow2") }
func (m *machine) console() []byte {
	b, _ := os.ReadFile(filepath.Join(m.dir, "console.log"))
	return tail(b)
}

// tail is what fits into the message of a test.
func tail(b []byte) []byte {
	const limit = 6 << 10
	return b[max(0, len(b)-limit):]
}

// platform is how QEMU makes a machine of an architecture.
type platform struct {
	qemu    string
	machine string
	cpu     string // when it is emulated
	console string
}

var platforms = map[string]platform{
	"amd64": {qemu: "qemu-system-x86_64", machine: "q35", cpu: "max,-cx16", console: "ttyS0,115200"},
	"arm64": {qemu: "qemu-system-aarch64", machine: "virt,gic-version=3", cpu: "cortex-a72", console: "ttyAMA0"},
}

const emulated = "tcg,thread=multi,tb-size=512"

// accelerators are tried in this order, once for all machines of this host's architecture; the first with which a guest
// starts stays.
var accelerators = []string{"kvm", emulated}

// An emulated kernel hangs once in a while when it starts, with both processors busy, and before anything of clawjail runs: seen once in
// 40 starts of 6.1 with QEMU 7.2. That is counted, and more than maxHangs fail.
const maxHangs = 2

var hangs int

// startedUp says whether the guest has come as far as to the services.
func (m *machine) startedUp() bool {
	for deadline := time.Now().Add(bootLimit); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		r, err := m.ask(wire.Request{Run: []string{"/bin/sh", "-c", "systemctl is-active basic.target"}, Seconds: 30})
		if err != nil {
			return false
		}
		if r.Status == 0 {
			return true
		}
	}
	return false
}

// boot starts the machine, and waits for its agent.
func (m *machine) boot() {
	m.t.Helper()
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		accelerators = accelerators[len(accelerators)-1:]
	} else {
		_ = f.Close() // it was only opened to see that it can be
	}
	began := time.Now()
	if m.guest.foreign() {
		if err := m.start(emulated, bootLimit); err != nil {
			m.t.Fatalf("the guest did not start: %v", err)
		}
		m.started(emulated, time.Since(began))
		return
	}
	for {
		began := time.Now()
		limit := bootLimit
		if len(accelerators) > 1 {
			limit = accelerated
		}
		err := m.start(accelerators[0], limit)
		if err == nil && m.startedUp() {
			m.started(accelerators[0], time.Since(began))
			return
		}
		m.cut()
		if err == nil {
			if hangs++; hangs > maxHangs {
				m.t.Fatalf("%d guests hung before their services started", hangs)
			}
			m.t.Logf("the guest hung before its services started, and starts again: %d of %d times in this run", hangs, maxHangs)
			continue
		}
		if len(accelerators) == 1 {
			m.t.Fatalf("the guest did not start: %v", err)
		}
		m.t.Logf("no guest starts here with %s: %v", accelerators[0], err)
		accelerators = accelerators[1:]
	}
}

// started notes what the machine is, and how fast: what it is told to do has as much more time.
func (m *machine) started(accelerator string, took time.Duration) {
	m.t.Helper()
	m.pace = min(max(took.Seconds()/usualBoot.Seconds(), 1), maxPace)
	accelerator, _, _ = strings.Cut(accelerator, ",")
	m.about = fmt.Sprintf("%s, %s, %s, %s", m.guest.suite, m.sh("uname -r"), m.guest.arch, accelerator)
	m.t.Logf("%s: started in %s", m.about, took.Round(100*time.Millisecond))
}

// longer is a limit of time in this guest.
func (m *machine) longer(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * max(m.pace, 1))
}

// qemu is a machine of a guest with its root on a disk, and more arguments. In dir are its console and its snapshots.
func qemu(g guest, accelerator, words, format, root, dir string, more ...string) *exec.Cmd {
	p := platforms[g.arch]
	if accelerator == "kvm" {
		p.cpu = "host"
	}
	cmd := exec.Command(p.qemu, append([]string{"-M", p.machine, "-accel", accelerator, "-cpu", p.cpu, "-smp", "2", "-m", "3072",
		"-display", "none", "-nodefaults", "-no-reboot", "-nic", "none", "-kernel", filepath.Join(g.dir, "vmlinuz"),
		"-append", "root=/dev/nvme0n1 rw console=" + p.console + " quiet panic=-1 " + words,
		"-drive", "if=none,id=root,format=" + format + ",file=" + root, "-device", "nvme,drive=root,serial=root",
		"-device", "virtio-rng-pci", "-serial", "file:" + filepath.Join(dir, "console.log")}, more...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that is killed leaves no machine
	return cmd
}

// secondStage lets a guest whose programs this host cannot run end the making of its disk.
func secondStage(g guest) error {
	root := filepath.Join(g.dir, "root.img")
	cmd := qemu(g, emulated, "init=/second-stage", "raw", root, g.dir)
	var words bytes.Buffer
	cmd.Stderr = &words
	if err := cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(stageLimit, func() { _ = cmd.Process.Kill() }) // it may have ended
	defer late.Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the second stage of %s: %w: %s", g.arch, err, words.String())
	}
	out, err := exec.Command("debugfs", "-R", "stat /second-stage", root).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("not found")) {
		console, _ := os.ReadFile(filepath.Join(g.dir, "console.log")) // shown for the reason
		return fmt.Errorf("the second stage of %s did not end well: %s", g.arch, tail(console))
	}
	return nil
}

// start starts QEMU and waits until the agent says that it is there. A guest that wants to start anew ends QEMU.
func (m *machine) start(accelerator string, limit time.Duration) error {
	socket := filepath.Join(m.dir, "port")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	args := []string{"-device", "virtio-serial-pci", "-chardev", "socket,id=port,server=on,wait=off,path=" + socket,
		"-device", "virtserialport,chardev=port,name=" + wire.Port}
	args = append(args, m.more...)
	if m.keeps != "" {
		args = append(args, "-drive", "if=none,id=kept,format=raw,file="+m.keeps, "-device", "virtio-blk-pci,drive=kept")
	}
	for i, image := range m.disks {
		id := fmt.Sprintf("disk%d", i)
		args = append(args, "-drive", "if=none,id="+id+",format=raw,snapshot=on,file="+image, "-device", "virtio-blk-pci,drive="+id)
	}
	var words bytes.Buffer
	m.qemu, m.ended = qemu(m.guest, accelerator, "apparmor=1 security=apparmor "+m.words, "qcow2", m.root(), m.dir, args...), make(chan error, 1)
	m.qemu.Stderr = &words
	if err := m.qemu.Start(); err != nil {
		return err
	}
	go func(q *exec.Cmd, ended chan<- error) { ended <- q.Wait() }(m.qemu, m.ended) // cut and off wait for it
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			m.port = listen(conn)
			break
		}
		select {
		case err := <-m.ended:
			m.qemu = nil
			return fmt.Errorf("QEMU ended: %v: %s", err, words.String())
		case <-late.C:
			return fmt.Errorf("no port: %w", err)
		case <-time.After(20 * time.Millisecond): // QEMU makes it first of all
		}
	}
	select {
	case <-m.port.ready:
		return nil
	case err := <-m.ended:
		m.qemu = nil
		return fmt.Errorf("QEMU ended: %v: %s", err, words.String())
	case <-late.C:
		return fmt.Errorf("its agent did not answer within %s; its console:\n%s", limit, m.console())
	}
}

// cut takes the power away: what the guest had not written is lost. A machine that is off stays so.
func (m *machine) cut() {
	if m.qemu == nil {
		return
	}
	_ = m.qemu.Process.Kill() // it may be ending by itself
	<-m.ended
	m.gone()
}

func (m *machine) gone() {
	m.qemu = nil
	if m.port != nil {
		m.port.close()
		m.port = nil
	}
}

// off lets the guest end by itself.
func (m *machine) off() { m.t.Helper(); m.end("poweroff") }

// reboot lets the guest end and starts it again.
func (m *machine) reboot() { m.t.Helper(); m.end("reboot"); m.boot() }

func (m *machine) end(verb string) {
	m.t.Helper()
	m.sh("systemctl --no-block " + verb)
	select {
	case err := <-m.ended:
		m.gone()
		if err != nil {
			m.t.Fatalf("%s: QEMU ended with %v", verb, err)
		}
	case <-time.After(bootLimit):
		m.t.Fatalf("%s: the guest did not end within %s", verb, bootLimit)
	}
}

// sh runs shell commands in the guest and returns what they print. They must end with 0.
func (m *machine) sh(script string, stdin ...string) string {
	m.t.Helper()
	r := m.try(script, stdin...)
	if r.Status != 0 {
		m.t.Fatalf("%s\nended with %d:\n%s%s", script, r.Status, tail(r.Stdout), tail(r.Stderr))
	}
	return strings.TrimSpace(string(r.Stdout))
}

// try is sh for commands that may end with something else.
func (m *machine) try(script string, stdin ...string) wire.Reply {
	m.t.Helper()
	return m.within(commandLimit, script, stdin...)
}

// within is try with another limit.
func (m *machine) within(limit time.Duration, script string, stdin ...string) wire.Reply {
	m.t.Helper()
	r, err := m.ask(wire.Request{Run: []string{"/bin/sh", "-euc", script}, Stdin: []byte(strings.Join(stdin, "")), Seconds: int(m.longer(limit).Seconds())})
	if err != nil {
		m.t.Fatalf("%s\n%v\n%s%s", script, err, tail(r.Stdout), tail(r.Stderr))
	}
	return r
}

// put writes a file in the guest.
func (m *machine) put(path, content string, mode os.FileMode) {
	m.t.Helper()
	if _, err := m.ask(wire.Request{Put: path, Stdin: []byte(content), Mode: uint32(mode)}); err != nil {
		m.t.Fatalf("put %s: %v", path, err)
	}
}

// get reads a file of the guest.
func (m *machine) get(path string) string {
	m.t.Helper()
	r, err := m.ask(wire.Request{Get: path})
	if err != nil {
		m.t.Fatalf("get %s: %v", path, err)
	}
	return string(r.Stdout)
}

func (m *machine) ask(r wire.Request) (wire.Reply, error) {
	if m.port == nil {
		return wire.Reply{}, errors.New("the machine is off")
	}
	return m.port.ask(r)
}

// eventually waits until a script ends with 0.
func (m *machine) eventually(limit time.Duration, script string) string {
	m.t.Helper()
	for deadline := time.Now().Add(m.longer(limit)); ; {
		r := m.try(script)
		if r.Status == 0 {
			return strings.TrimSpace(string(r.Stdout))
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("not within %s: %s\n%d:\n%s%s", limit, script, r.Status, tail(r.Stdout), tail(r.Stderr))
		}
		time.Sleep(time.Second) // the guest is slow, and asking costs it something
	}
}

// port is the connection with the agent.
type port struct {
	conn  net.Conn
	ready chan struct{} // closed when the agent is there
	done  sync.WaitGroup

	mu      sync.Mutex
	last    int                     // guarded by mu, as what follows
	waiting map[int]chan wire.Reply // closed when the connection ends
	closed  bool
}

func listen(conn net.Conn) *port {
	p := &port{conn: conn, ready: make(chan struct{}), waiting: map[int]chan wire.Reply{}}
	p.done.Go(p.read)
	return p
}

func (p *port) read() {
	replies, greeted := json.NewDecoder(p.conn), false
	for {
		var r wire.Reply
		if err := replies.Decode(&r); err != nil {
			break
		}
		p.mu.Lock()
		if r.ID == 0 && !greeted {
			greeted = true
			close(p.ready)
		}
		if c := p.waiting[r.ID]; c != nil {
			delete(p.waiting, r.ID)
			c <- r
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.waiting {
		close(c)
	}
}

func (p *port) ask(r wire.Request) (wire.Reply, error) {
	answer := make(chan wire.Reply, 1)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return wire.Reply{}, errors.New("the machine is off")
	}
	p.last++
	r.ID = p.last
	p.waiting[r.ID] = answer
	err := json.NewEncoder(p.conn).Encode(r)
	p.mu.Unlock()
	if err != nil {
		return wire.Reply{}, err
	}
	late := time.NewTimer(time.Duration(r.Seconds)*time.Second + time.Minute)
	defer late.Stop()
	select {
	case reply, ok := <-answer:
		if !ok {
			return reply, errors.New("the machine went off")
		}
		if reply.Error != "" {
			return reply, errors.New(reply.Error)
		}
		return reply, nil
	case <-late.C:
		return wire.Reply{}, errors.New("the agent did not answer")
	}
}

func (p *port) close() {
	_ = p.conn.Close() // QEMU has gone, and what is on its way is of no use
	p.done.Wait()
}

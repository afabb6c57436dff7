//go:build linux

package linux

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// Nothing of a program runs before Begin, and a program that ends at once does so after it.
func TestAProgramWaitsUntilItMayBegin(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		spec := probeSpec(jail.KindBrowser)
		spec.Program.Argv = []string{"/bin/sh", "-c", "echo begun"}
		p := h.place(t, spec)
		read, write, err := os.Pipe()
		must(t, err)
		defer func() { _ = read.Close() }()
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		must(t, err)
		proc, err := h.runtime.Start(context.Background(), p, [3]*os.File{null, write, null})
		must(t, err)
		_, _ = write.Close(), null.Close()
		buf := make([]byte, 16)
		must(t, read.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		if n, err := read.Read(buf); !os.IsTimeout(err) {
			t.Fatalf("before Begin it said %q, %v", buf[:n], err)
		}
		must(t, h.runtime.Begin(context.Background(), p, proc))
		must(t, read.SetReadDeadline(time.Now().Add(10*time.Second)))
		if n, err := read.Read(buf); string(buf[:n]) != "begun\n" {
			t.Fatalf("after Begin it said %q, %v", buf[:n], err)
		}
		if code, _, err := h.runtime.Wait(context.Background(), p.Name, proc); code != 0 || err != nil {
			t.Fatalf("it ended with %d, %v", code, err)
		}
		must(t, h.runtime.Begin(context.Background(), p, proc)) // an ended one is no error
		h.end(t, p.Name, proc)
		h.noTraces(t)
	})
}

//go:build linux

package pid1_test

import (
	"io"
	"os/exec"
	"testing"
	"time"
)

// BenchmarkStdio is a message to a program and its answer, and a picture: through the pipes of a process, and through those of a pod's.
func BenchmarkStdio(b *testing.B) {
	for name, size := range map[string]int{"message": 200, "picture": 200_000} {
		run := func(b *testing.B, in io.Writer, out io.Reader) {
			b.SetBytes(int64(size))
			message := make([]byte, size)
			for b.Loop() {
				wrote := make(chan error, 1)
				go func() {
					_, err := in.Write(message)
					wrote <- err
				}()
				if _, err := io.ReadFull(out, make([]byte, size)); err != nil {
					b.Fatal(err)
				}
				if err := <-wrote; err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(name+"/process", func(b *testing.B) {
			cmd := exec.Command("cat")
			in, err1 := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err1 != nil || err2 != nil || cmd.Start() != nil {
				b.Fatal(err1, err2)
			}
			run(b, in, out)
			_ = in.Close()
			_ = cmd.Wait() // its stdin is at its end
		})
		b.Run(name+"/pod", func(b *testing.B) {
			w := newFixture(b, time.Minute)
			_, p := w.prepared()
			in, out := w.plain(p, shell("exec cat", true))
			run(b, in, out)
		})
	}
}

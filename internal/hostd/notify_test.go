package hostd

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

func TestTheServiceManagerIsTold(t *testing.T) {
	sockets := []string{filepath.Join(filepath.Dir(newSocket(t)), "notify")}
	if runtime.GOOS == "linux" {
		sockets = append(sockets, fmt.Sprintf("@clawjail-test-%d", os.Getpid()))
	}
	for _, name := range sockets {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := Notifier(name)("READY=1"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		var b [100]byte
		if n, err := l.Read(b[:]); err != nil || string(b[:n]) != "READY=1" {
			t.Errorf("%s got %q, %v", name, b[:n], err)
		}
	}
	if err := Notifier("")("READY=1"); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
	if err := Notifier(sockets[0] + "x")("READY=1"); err == nil {
		t.Error("a service manager that is not there is not noticed")
	}
}

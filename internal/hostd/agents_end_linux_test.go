package hostd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Programs that joined a jail and connections into it end when the jail does, whoever ends it and whatever they are
// doing.
func TestProgramsAndConnectionsEndWithTheirJail(t *testing.T) {
	clawbot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := agentsFolder(t)
	d := startHelper(t, self, "agents", nil, dir, "end")
	d.expect(t, "READY=1")
	defer d.end(t)
	c := NewClient(SocketPath(agentsConfig(dir)), nil)
	const echo = `python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 8000))
while True:
    c, _ = s.accept()
    c.sendall(b"hello\n")
    keep = c'`
	k := clawbotKept("bot", echo)
	for what, end := range map[string]func(s jail.KeptStatus) error{
		"drop":    func(jail.KeptStatus) error { return c.Drop(t.Context(), "default", "bot", jail.DropOptions{}) },
		"restart": func(jail.KeptStatus) error { return c.RestartKept(t.Context(), "default", "bot") },
		"destroy": func(s jail.KeptStatus) error { return c.Destroy(t.Context(), s.Jail) },
		"its own end": func(s jail.KeptStatus) error {
			r, err := c.ExecIn(t.Context(), s.Jail, jail.Program{Argv: []string{"/bin/sh", "-c", "kill -KILL $(pidof python3)"}, Wire: jail.WireStdio})
			if err == nil {
				r.Stdio.Close()
				_, _ = r.Wait(t.Context()) // it ends with the jail, or before
			}
			return err
		},
	} {
		s := keep(t, c, k)
		var conn net.Conn
		var from *bufio.Reader
		testenv.Eventually(t, patience, func() bool {
			file, err := c.DialIn(t.Context(), s.Jail, 8000)
			if err != nil {
				return false
			}
			defer file.Close() // net has its own
			conn, err = net.FileConn(file)
			return err == nil
		}, "%s: nothing listens", what)
		from = bufio.NewReader(conn)
		if line, err := from.ReadString('\n'); line != "hello\n" {
			t.Errorf("%s: the connection says %q, %v", what, line, err)
		}
		r := execIn(t, c, s.Jail, "trap '' TERM; echo up; while :; do sleep 1; done")
		out := bufio.NewReader(r.Stdio.Out)
		if line, err := out.ReadString('\n'); line != "up\n" {
			t.Errorf("%s: the program says %q, %v", what, line, err)
		}
		if err := end(s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if x, err := r.Wait(t.Context()); err != nil || x.Code == 0 {
			t.Errorf("%s: the program ended by %+v, %v", what, x, err)
		}
		if line, err := out.ReadString('\n'); err != io.EOF {
			t.Errorf("%s: the program goes on with %q, %v", what, line, err)
		}
		if line, err := from.ReadString('\n'); err == nil {
			t.Errorf("%s: the connection goes on with %q", what, line)
		}
		_ = conn.Close() // its other end is gone
		if err := c.Drop(t.Context(), "default", "bot", jail.DropOptions{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	resources, err := c.HostResources(t.Context())
	for _, trace := range resources {
		if trace.Name != "" {
			t.Errorf("left is %+v", trace)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestTheStageIsWhereRootsEnvironmentSays(t *testing.T) {
	testenv.Need(t, testenv.Root)
	t.Setenv(stageDirVariable, "not/absolute")
	dir := t.TempDir()
	err := Run(t.Context(), RunOptions{Config: runConfig(dir, "nobody"), Version: "test", Now: time.Now, Substrate: ThisHost(), Log: debugLog(io.Discard)})
	if err == nil || !strings.Contains(fmt.Sprint(err), stageDirVariable+` is "not/absolute"`) {
		t.Errorf("run: %v", err)
	}
}

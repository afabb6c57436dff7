//go:build linux

package agents

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// caller connects to each socket that it is told, in the folder that is its first argument, and says what came of it: the
// greeting, and to whom the TCP connection leads that was passed with it. Then it tries what else could have an address.
const caller = `import errno, socket, sys
def said(name, what):
    try: print(name, what())
    except OSError as e: print(name, errno.errorcode[e.errno])
def call(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    text, fds, _, _ = socket.recv_fds(s, 100, 1)
    return text.decode() + (":%d" % socket.socket(fileno=fds[0]).getpeername()[1] if fds else "")
def address(kind, path):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    a.connect(path)
    return "connected"
def pair(kind):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    a.send(b"x")
    return b.recv(1).decode()
for name in sys.argv[2:]:
    said(name, lambda: call(sys.argv[1] + "/" + name))
for name in ("DGRAM", "RAW"):
    said(name, lambda: address(getattr(socket, "SOCK_" + name), sys.argv[1] + "/datagrams"))
for name in ("STREAM", "SEQPACKET"):
    said(name, lambda: pair(getattr(socket, "SOCK_" + name)))
`

// answerer listens at a path until it is ended.
const answerer = `import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); s.listen(5)
while True:
    c, _ = s.accept(); c.sendall(b"jail"); c.close()
`

// hand listens at a path, and hands everybody who connects a TCP connection of the host's own; the answer is its port.
func hand(t *testing.T, path string) int {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tcp.Close() })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", tcp.Addr().String())
			if err == nil {
				var file *os.File
				if file, err = out.(*net.TCPConn).File(); err == nil {
					_, _, err = c.WriteMsgUnix([]byte("host"), unix.UnixRights(int(file.Fd())), nil)
					err = errors.Join(err, file.Close())
				}
				err = errors.Join(err, out.Close())
			}
			if err := errors.Join(err, c.Close()); err != nil {
				t.Log(err) // a caller that does not wait for it
			}
		}
	}()
	return tcp.Addr().(*net.TCPAddr).Port
}

// slowServer is an MCP server with a tool, which takes a second to say so.
const slowServer = `import json, sys, time
for line in sys.stdin:
    m = json.loads(line)
    if m["method"] == "initialize":
        r = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "slow", "version": "1"}}
    elif m["method"] == "tools/list":
        time.sleep(1)
        r = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        r = {}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`

// Those who share a folder share its files, and no connections: neither a program of the host that listens in it nor another
// jail is reached, by whatever way a program comes to see the folder. Where it is declared, both are.
func TestASharedFolderConnectsNobody(t *testing.T) {
	e := testkit.NewEstate(t, `mcp_servers:
  mounted: {command: [/bin/sh, -c, "python3 /mnt/team/call.py /mnt/team host.sock >/mnt/team/mcp.out 2>&1"], template: clawbot,
    mounts: [{source: DIR/workspaces/team, target: /mnt/team}]}
  beside: {command: [/bin/sh, -c, "env >/workspace/beside.env; python3 /workspace/call.py /workspace host.sock >/workspace/beside.out 2>&1; exec python3 /workspace/mcp.py"], agent: one}
`)
	team := filepath.Join(e.Dir, "workspaces", "team")
	if err := errors.Join(os.Mkdir(team, 0o777), os.Chmod(team, 0o777), os.WriteFile(filepath.Join(team, "call.py"), []byte(caller), 0o644),
		os.WriteFile(filepath.Join(team, "answer.py"), []byte(answerer), 0o644),
		os.WriteFile(filepath.Join(team, "mcp.py"), []byte(slowServer), 0o644), unix.Mknod(filepath.Join(team, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		os.Chmod(filepath.Join(team, "null"), 0o666)); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(hand(t, filepath.Join(team, "host.sock")))
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(team, "datagrams"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = datagrams.Close() })
	if err := os.Chmod(filepath.Join(team, "datagrams"), 0o777); err != nil {
		t.Fatal(err)
	}
	e.Sync(`clawbots:
  - name: alone
  - name: one
    workspace: ./workspaces/team
    env: {OF_ITS_OWN: something}
    command: [/bin/sh, -c, "python3 /workspace/call.py /workspace host.sock >/workspace/own.out 2>&1; exec sleep 100000"]
  - {name: open, workspace: ./workspaces/team, unix_sockets: true}
  - {name: friend, workspace: ./workspaces/team, unix_sockets: true}
`)
	for _, name := range []string{"alone", "one", "open", "friend"} {
		e.Running(name)
	}
	listening := e.Command(t.Context(), "agent", "exec", "open", "--", "python3", "/workspace/answer.py", "/workspace/jail.sock")
	if err := listening.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = listening.Process.Kill(), listening.Wait() })
	knock := func() (string, error) {
		c, err := net.DialTimeout("unix", filepath.Join(team, "jail.sock"), time.Second)
		if err != nil {
			return "", err
		}
		defer func() { _ = c.Close() }()
		text, err := io.ReadAll(c)
		return string(text), err
	}
	testenv.Eventually(t, 20*time.Second, func() bool { _, err := knock(); return err == nil }, "nobody listens in the jail")

	const call = "python3 /workspace/call.py /workspace host.sock jail.sock"
	const pairs = "STREAM x\nSEQPACKET x\n"
	const nothing = "DGRAM EPERM\nRAW EPERM\n" + pairs
	t.Run("declared", func(t *testing.T) {
		if got, want := e.MustIn("friend", call), "host.sock host:"+port+"\njail.sock jail\nDGRAM connected\nRAW connected\n"+pairs; got != want {
			t.Errorf("with the declaration it is %q, so that refusals show nothing; want %q", got, want)
		}
		if got, err := knock(); err != nil || got != "jail" {
			t.Errorf("the host hears %q of the jail: %v", got, err)
		}
		out, err := e.Run(t.Context(), "agent", "show", "friend")
		if err != nil || !strings.Contains(out, "past the gateway") {
			t.Errorf("it is not shown with the agent: %v\n%s", err, out)
		}
	})
	t.Run("not declared", func(t *testing.T) {
		refused := "host.sock EPERM\n" + nothing
		if got, want := e.MustIn("one", call), "host.sock EPERM\njail.sock EPERM\n"+nothing; got != want {
			t.Errorf("exec: %q, want %q", got, want)
		}
		if out, err := e.In("one", "timeout 5 python3 /workspace/answer.py /workspace/one.sock 2>&1"); err == nil || !strings.Contains(out, "Operation not permitted") {
			t.Errorf("it listens: %v %s", err, out)
		}
		identities(e, "writer")
		out, errs, status := spawned(e, nil, "--agent", "writer", "--mount", team+":/mnt/team", "--", "python3", "/mnt/team/call.py", "/mnt/team", "host.sock")
		if out != refused || status != 0 {
			t.Errorf("spawn: %q %q %d", out, errs, status)
		}
		_, _ = e.Run(t.Context(), "mcp-server", "test", "mounted") // it speaks no MCP, and ends
		if out, err := e.Run(t.Context(), "mcp-server", "test", "beside"); err != nil || !strings.Contains(out, "beside__echo") {
			t.Errorf("the server beside an agent offers nothing: %v\n%s", err, out)
		}
		// A server in the jail of an agent has what leads the agent to the gateway.
		var env []byte
		testenv.Eventually(t, 20*time.Second, func() bool {
			env, _ = os.ReadFile(filepath.Join(team, "beside.env"))
			return len(env) > 0
		}, "the server beside the agent does not start")
		for _, name := range []string{"SHELL_URL=http", "HTTPS_PROXY=http", "OF_ITS_OWN=something"} {
			if !strings.Contains("\n"+string(env), "\n"+name) {
				t.Errorf("a server beside an agent has no %s: %s", name, env)
			}
		}
		for _, file := range []string{"own.out", "mcp.out", "beside.out"} {
			var got []byte
			testenv.Eventually(t, 20*time.Second, func() bool {
				got, _ = os.ReadFile(filepath.Join(team, file))
				return strings.Contains(string(got), "SEQPACKET")
			}, "nothing is said in %s", file)
			if string(got) != refused {
				t.Errorf("%s: %q", file, got)
			}
		}
	})
	t.Run("without a folder of the host", func(t *testing.T) {
		if got := e.MustIn("alone", "cat >/state/a.py <<'X'\n"+answerer+"X\ncat >/state/c.py <<'X'\n"+caller+"X\n"+
			"python3 /state/a.py /state/s & for n in $(seq 2000); do [ -S /state/s ] && break; sleep 0.01; done; python3 /state/c.py /state s; kill $!"); !strings.HasPrefix(got, "s jail\n") {
			t.Errorf("its own programs do not find each other: %q", got)
		}
	})
	t.Run("devices", func(t *testing.T) {
		if f, err := os.OpenFile(filepath.Join(team, "null"), os.O_RDWR, 0); err != nil {
			t.Errorf("the device works nowhere, which shows nothing: %v", err)
		} else if err := f.Close(); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"one", "open"} {
			if out, err := e.In(name, "cat /workspace/null"); err == nil {
				t.Errorf("a device of the host works in the jail of %s: %s", name, out)
			}
		}
	})
}

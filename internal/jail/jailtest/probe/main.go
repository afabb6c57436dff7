//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// answer is what a probe found. The package inside reads it.
type answer struct {
	OK     bool     `json:"ok"`
	Errno  string   `json:"errno,omitempty"` // such as EPERM, where the kernel refused
	Error  string   `json:"error,omitempty"`
	Text   string   `json:"text,omitempty"`
	List   []string `json:"list,omitempty"`
	Number int64    `json:"number,omitempty"`
}

func main() {
	if filepath.Base(os.Args[0]) == "cp" {
		if err := copyTree(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "cp:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: probe serve | probe NAME [ARGUMENT…]")
		os.Exit(2)
	}
	out := json.NewEncoder(os.Stdout)
	if os.Args[1] != "serve" {
		a := ask(os.Args[1], os.Args[2:])
		if out.Encode(a) != nil || !a.OK {
			os.Exit(1)
		}
		return
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		f := strings.Split(in.Text(), "\t")
		if out.Encode(ask(f[0], f[1:])) != nil {
			os.Exit(1) // the test does not read any more
		}
	}
}

// ask runs one probe. A probe that panics for want of arguments is answered as well.
func ask(name string, args []string) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a = answer{Error: fmt.Sprintf("probe %s %q: %v", name, args, p)}
		}
	}()
	probe, ok := probes()[name]
	if !ok {
		return answer{Error: "there is no probe " + name}
	}
	var err error
	a, err = probe(args)
	if err != nil {
		a.Error = err.Error()
		var errno syscall.Errno
		if errors.As(err, &errno) {
			a.Errno = unix.ErrnoName(errno)
		}
		return a
	}
	a.OK = true
	return a
}

func probes() map[string]func([]string) (answer, error) {
	return map[string]func([]string) (answer, error){
		"fds":     openDescriptors,
		"list":    listTree,
		"names":   listNames,
		"read":    readFile,
		"write":   writeFile,
		"fill":    fillFile,
		"mknod":   makeNode,
		"status":  statusField,
		"env":     func(a []string) (answer, error) { return answer{Text: os.Getenv(a[0])}, nil },
		"cwd":     func([]string) (answer, error) { d, err := os.Getwd(); return answer{Text: d}, err },
		"echo":    func(a []string) (answer, error) { return answer{List: a}, nil },
		"exit":    func(a []string) (answer, error) { os.Exit(number(a[0])); return answer{}, nil },
		"socket":  makeSocket,
		"unshare": unshareFlags,
		"clone":   cloneFlags,
		"chroot":  func(a []string) (answer, error) { return answer{}, syscall.Chroot(a[0]) },
		"within":  within,
		"call":    rawCall,
		"link":    makeLink,
		"option":  setOption,
		"limit":   lowerLimit,
		"crash":   crash,
		"memory":  eatMemory,
		"fork":    forkMany,
		"bomb":    bomb,
		"files":   openMany,
		"dial":    dial,
		"listen":  listen,
		"accept":  accept,
		"stdout":  func(a []string) (answer, error) { _, err := fmt.Print(strings.Join(a, " ")); return answer{}, err },
		"stderr": func(a []string) (answer, error) {
			_, err := fmt.Fprint(os.Stderr, strings.Join(a, " "))
			return answer{}, err
		},
		"sleep":   func([]string) (answer, error) { time.Sleep(time.Hour); return answer{}, nil },
		"setsid":  leaveSession,
		"runcopy": runCopy,
		"wait":    func([]string) (answer, error) { select {} },
	}
}

// leaveSession becomes another program in a session of its own. It must not lead a process group, as is so after a fork.
func leaveSession(args []string) (answer, error) {
	if _, err := syscall.Setsid(); err != nil {
		return answer{}, err
	}
	return answer{}, syscall.Exec(args[0], args, os.Environ())
}

// runCopy copies this program to a path and runs it there.
func runCopy(args []string) (answer, error) {
	text, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(args[0], text, 0o700)
	}
	if err != nil {
		return answer{}, err
	}
	p, err := os.StartProcess(args[0], []string{"probe", "exit", "0"}, &os.ProcAttr{})
	if err != nil {
		return answer{}, err
	}
	st, err := p.Wait()
	if err != nil {
		return answer{}, err
	}
	return answer{Number: int64(st.ExitCode())}, nil
}

func number(s string) int {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return int(n)
}

// copyTree is cp -R FROM/. TO/.
func copyTree(args []string) error {
	if len(args) != 3 || args[0] != "-R" {
		return fmt.Errorf("only cp -R FROM/. TO/ is known here, not %q", args)
	}
	return os.CopyFS(args[2], os.DirFS(args[1]))
}

//go:build linux

// Command clawjail-shim is the first process of a pod in which clawjail runs a program. See internal/jail/kubernetes/pid1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/clawjail/clawjail/internal/jail/kubernetes/pid1"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
)

// version is set by the linker.
var version = "unknown"

const usage = `usage: clawjail-shim --gateway HOST:PORT --pin KEY --token FILE
       clawjail-shim ready
       clawjail-shim install FILE
       clawjail-shim version

It is the first process of a pod that the driver for Kubernetes makes, and does what the control plane asks. ready succeeds when
the pod has been seen to be confined, for its startup probe. install copies the program to a file, for a pod whose image has none.

`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case pid1.HoldCommand:
			return pid1.Hold(args[1:])
		case "ready":
			ready, err := pid1.Ready()
			if err != nil {
				fmt.Fprintf(os.Stderr, "clawjail-shim: error: %v\n", err)
			}
			if !ready {
				return 1
			}
			return 0
		case "install":
			if len(args) != 2 {
				fmt.Fprintln(os.Stderr, "clawjail-shim: error: install takes the name of a file")
				return pid1.ExitUsage
			}
			if err := install(args[1]); err != nil {
				fmt.Fprintf(os.Stderr, "clawjail-shim: error: %v\n", err)
				return pid1.ExitFailed
			}
			return 0
		case "version":
			fmt.Println("clawjail-shim", version)
			return 0
		}
	}
	o := pid1.Options{Log: os.Stderr}
	flags := flag.NewFlagSet("clawjail-shim", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.Gateway, "gateway", "", "where the control plane lets pods in, as `HOST:PORT`")
	flags.StringVar(&o.Pin, "pin", "", "the SHA-256 of its public `KEY`, in base64")
	flags.StringVar(&o.Token, "token", "", "the `FILE` of the pod's token, which is read anew for each connection")
	if err := flags.Parse(args); err != nil {
		return pid1.ExitUsage
	}
	host, _, err := net.SplitHostPort(o.Gateway)
	if err != nil || host == "" || !shim.ValidPin(o.Pin) || o.Token == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "clawjail-shim: error: --gateway HOST:PORT, --pin and --token are needed, and nothing else")
		return pid1.ExitUsage
	}
	return pid1.Serve(context.Background(), o)
}

// install copies this program to a file.
func install(path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // it is only read
	to, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Chmod(0o755), to.Close())
}

//go:build !linux

// Command clawjail-shim is the first process of a pod in which clawjail runs a program.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "clawjail-shim: error: it runs in pods, which are of Linux")
	os.Exit(64)
}

// Command small is package smallbrowser as a program, which is started as Chromium is.
package main

import (
	"os"

	"github.com/clawjail/clawjail/test/k8s/smallbrowser"
)

func main() {
	if err := smallbrowser.Answer(os.NewFile(3, "commands"), os.NewFile(4, "replies")); err != nil {
		os.Exit(1)
	}
}

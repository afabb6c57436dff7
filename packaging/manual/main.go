// Command manual writes the manual pages and the completions of clawjail, from its commands. It is run when clawjail is installed
// or packaged, and is not in the program.
//
// The same sources give the same bytes: the date of the pages is SOURCE_DATE_EPOCH, which must be set.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/clawjail/clawjail/internal/cli"
)

func main() {
	out := flag.String("out", "", "write man1/ and completions/ into this `folder`")
	version := flag.String("version", "dev", "the `version` that the pages name")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*out, *version, os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func write(out, version, epoch string) error {
	root := cli.New(version)
	hideStamps(root)
	header := &doc.GenManHeader{Section: "1", Source: "clawjail " + version, Manual: "clawjail"}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH=%q is not a number of seconds: %w", epoch, err)
	}
	date := time.Unix(seconds, 0).UTC()
	header.Date = &date
	man, completions := filepath.Join(out, "man1"), filepath.Join(out, "completions")
	for _, dir := range []string{man, completions} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := doc.GenManTree(root, header, man); err != nil {
		return fmt.Errorf("write the manual pages: %w", err)
	}
	for name, generate := range map[string]func(string) error{
		"clawjail":      func(f string) error { return root.GenBashCompletionFileV2(f, true) },
		"_clawjail":     root.GenZshCompletionFile,
		"clawjail.fish": func(f string) error { return root.GenFishCompletionFile(f, true) },
	} {
		if err := generate(filepath.Join(completions, name)); err != nil {
			return fmt.Errorf("write the completions: %w", err)
		}
	}
	return nil
}

// hideStamps leaves out the lines that say by what the pages were written, and when.
func hideStamps(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	for _, c := range cmd.Commands() {
		hideStamps(c)
	}
}

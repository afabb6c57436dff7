// Command clawjail-spawn lets users whom root has named run programs in jails. It is setuid root. See internal/jailspawn/helper.
package main

import (
	"os"

	"github.com/clawjail/clawjail/internal/jailspawn/helper"
)

// configFile is fixed when the program is built: neither an argument nor a variable names it.
var configFile = helper.ConfigPath

func main() {
	os.Exit(helper.Main(helper.Program{ConfigFile: configFile, Args: os.Args, Environ: os.Environ()}))
}

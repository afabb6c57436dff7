package doctor

import "github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"

// simulate makes this process a command of a simulated host when it was started as one.
func simulate() { hosttest.Main() }

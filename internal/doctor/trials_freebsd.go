package doctor

import "github.com/clawjail/clawjail/internal/hostcmd"

// trials are few here: what changes a host is in a recording.
func trials(Options) Trials { return Trials{Subnet: freebsdSubnet(hostcmd.Runner{})} }

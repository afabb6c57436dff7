//go:build !linux

package backup

import "github.com/clawjail/clawjail/internal/config"

// noVolumesInUse has nothing to look for: volumes are no files here.
func noVolumesInUse(config.Config) error { return nil }

// stateInFiles says that what agents keep is not files of the data directory: it is datasets, which have tools of their own.
const stateInFiles = false

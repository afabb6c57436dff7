package quota

import (
	"github.com/clawjail/clawjail/internal/base/memory"
	"github.com/clawjail/clawjail/internal/config"
)

// declaredTimes is how many times the memory of the host jails may declare together, where the configuration does not say it: few
// of them take all that they may.
const declaredTimes = 4

// DeclaredMemory is how much memory jails may declare together.
func DeclaredMemory(q config.Quotas) (int64, error) {
	if q.Memory > 0 {
		return int64(q.Memory), nil
	}
	host, err := memory.Host()
	return declaredTimes * host, err
}

package jail

import _ "embed"

// PoliciesDir is where Chromium on Linux reads what its administrator has decided, in a folder named managed.
const PoliciesDir = "/etc/chromium/policies"

// Names of the file below PoliciesDir.
const (
	PoliciesManaged = "managed"
	PoliciesFile    = "clawjail.json"
)

//go:embed policies.json
var policies []byte

// Policies are what every browser is told by its administrator, as the file that Chromium reads. They are put over the
// template's when a jail is made, and are no choice of the caller's. The headless shell reads none.
func Policies() []byte { return policies }

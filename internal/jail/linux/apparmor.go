//go:build linux

package linux

import (
	"os"
	"path/filepath"
	"strings"
)

// AppArmorProfile is the profile that packaging/apparmor installs. Ubuntu 23.10 and later refuse user namespaces,
// which Chromium's sandbox is built from, to every program without one.
const AppArmorProfile = "clawjail-browser"

// appArmorProfile is AppArmorProfile where AppArmor is on and the profile is loaded, else nothing: a runtime refuses
// to start with a profile that is not there. root is the host's root folder.
func appArmorProfile(root string) string {
	on, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	if err != nil || strings.TrimSpace(string(on)) != "Y" {
		return ""
	}
	loaded, err := os.ReadFile(filepath.Join(root, "sys/kernel/security/apparmor/profiles"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(loaded)) {
		if strings.HasPrefix(line, AppArmorProfile+" (") {
			return AppArmorProfile
		}
	}
	return ""
}

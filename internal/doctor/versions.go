package doctor

import (
	"regexp"
	"strconv"
)

// version is major, minor, patch and the number of a release candidate, which is large for a release.
type version [4]int

const release = 1 << 20

// parseVersion reads 1.1.5, 1.1.5+ds1, 1.4.0-rc.2, 1.0.0-rc93 and the like. The text behind that is a builder's own.
func parseVersion(text string) (version, bool) {
	m := regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:[-~]rc\.?(\d{1,6}))?`).FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	v := version{3: release}
	for i, digits := range m[1:] {
		if digits != "" {
			v[i], _ = strconv.Atoi(digits) // at most six digits
		}
	}
	return v, true
}

func (v version) less(w version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}

// hole is a known way out of a container, and in which versions it is: from each first one up to the one that fixes it.
type hole struct {
	runtime string
	cves    []string
	in      [][2]version
	fixed   string
}

// knownHoles are those of the runtimes themselves that lead out of a container.
//
// runc: advisories GHSA-xr7r-f8xq-vfvv (leaked descriptors) and, of November 2025, GHSA-9493-h29p-rfm2,
// GHSA-qw9x-cqr3-wc7r and GHSA-cgrx-mc8f-2prm (masked paths, /dev/console, writes to procfs), which crun does not have
// (https://github.com/containers/crun/issues/1906). crun: its release notes of 0.10.5 and 1.4.4.
func knownHoles() []hole {
	v := func(major, minor, patch, candidate int) version { return version{major, minor, patch, candidate} }
	return []hole{
		{"runc", []string{"CVE-2024-21626"}, [][2]version{{v(1, 0, 0, 93), v(1, 1, 12, release)}}, "1.1.12"},
		{"runc", []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}, [][2]version{
			{v(0, 0, 0, 0), v(1, 2, 8, release)},
			{v(1, 3, 0, 0), v(1, 3, 3, release)},
			{v(1, 4, 0, 0), v(1, 4, 0, 3)},
		}, "1.2.8, 1.3.3 or 1.4.0-rc.3"},
		{"crun", []string{"CVE-2019-18837"}, [][2]version{{v(0, 0, 0, 0), v(0, 10, 5, release)}}, "0.10.5"},
		{"crun", []string{"CVE-2022-27650"}, [][2]version{{v(0, 0, 0, 0), v(1, 4, 4, release)}}, "1.4.4"},
	}
}

// holes lists the known holes of a version.
func holes(runtime string, v version) []string {
	var open []string
	for _, h := range knownHoles() {
		if h.runtime != runtime {
			continue
		}
		for _, span := range h.in {
			if !v.less(span[0]) && v.less(span[1]) {
				open = append(open, h.cves...)
				break
			}
		}
	}
	return open
}

// fixedIn names the first versions without any known hole.
func fixedIn(runtime string) string {
	last := ""
	for _, h := range knownHoles() {
		if h.runtime == runtime {
			last = h.fixed
		}
	}
	return last
}

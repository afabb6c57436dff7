package docker

import (
	"strings"
	"testing"
)

func TestAnEngineThatMapsUsersIsKnown(t *testing.T) {
	tests := []struct {
		options []string
		want    Engine
	}{
		{nil, Engine{Version: "27"}},
		{[]string{"name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"}, Engine{Version: "27", Seccomp: true}},
		{[]string{"name=seccomp,profile=default"}, Engine{Version: "27", Seccomp: true}},
		{[]string{"name=rootless", "name=seccomp,profile=builtin"}, Engine{Version: "27", Seccomp: true, Mapped: "rootless"}},
		{[]string{"name=userns"}, Engine{Version: "27", Mapped: "userns"}},
		{[]string{"profile=seccompish", "", ",", "name="}, Engine{Version: "27"}},
	}
	for _, tt := range tests {
		if got := engineOf("27", tt.options); got != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.options, got, tt.want)
		}
	}
	if got := engineOf(strings.Repeat("9", 1<<20), nil); len(got.Version) != maxVersion {
		t.Errorf("a version has %d characters", len(got.Version))
	}
}

package config

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

// other are settings of which none is the default.
func other() HostBrowser {
	return HostBrowser{ControlURL: "http://127.0.0.1:4000", Color: "#00ff00", Headless: HeadlessYes, AttachOnly: true, Executable: "/opt/my browser",
		Remote: RemoteBrowser{Listen: netip.MustParseAddrPort("192.0.2.7:18791"), TLS: TLS{Cert: "/c", Key: "/k"}, Token: "/t"}}
}

func desk() Environment {
	return Environment{GOOS: "linux", Home: "/home/ada", Getenv: func(string) string { return "" }}
}

func TestEverySettingOfTheHostBrowserCanBeEdited(t *testing.T) {
	// A setting whose tag has no key would not be changed, and is found here.
	differs(t, "browser", reflect.ValueOf(other()), reflect.ValueOf(defaultHostBrowser()))
	for _, text := range []string{"", "# nothing\n", "log:\n  level: debug # loud\n", "browser: {}\n", "browser:\n  color: '#111111' # dark\n  tls: {}\n"} {
		there, err := desk().EditHostBrowser("f", []byte(text), other())
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if c, err := desk().Parse("f", there); err != nil || c.HostBrowser != other() {
			t.Errorf("%q: %v\n%s", text, err, there)
		}
		back, err := desk().EditHostBrowser("f", there, defaultHostBrowser())
		if err != nil {
			t.Fatalf("%q: %v", there, err)
		}
		if c, err := desk().Parse("f", back); err != nil || c.HostBrowser != defaultHostBrowser() {
			t.Errorf("%q: %v\n%s", text, err, back)
		}
		for comment := range strings.SplitSeq(text, "\n") {
			if _, comment, ok := strings.Cut(comment, "# "); ok && !strings.Contains(string(back), "# "+comment) {
				t.Errorf("%q: the comment %q is gone:\n%s", text, comment, back)
			}
		}
	}
}

func differs(t *testing.T, name string, a, b reflect.Value) {
	t.Helper()
	if a.Kind() == reflect.Struct && a.Type() != reflect.TypeFor[netip.AddrPort]() {
		for n := range a.NumField() {
			differs(t, name+"."+a.Type().Field(n).Name, a.Field(n), b.Field(n))
		}
		return
	}
	if a.Interface() == b.Interface() {
		t.Errorf("%s is as always", name)
	}
}

func TestEditingTheHostBrowserChangesWhatDiffersAlone(t *testing.T) {
	const text = "# Mine.\nlisten: 127.0.0.1:9000   # here\n\nbrowser:\n    # orange\n    color: '#FF4500'\n    headless: auto   # as it comes\n\nlog: {level: debug}\n"
	to := defaultHostBrowser()
	to.Headless = HeadlessNo
	got, err := desk().EditHostBrowser("f", []byte(text), to)
	if want := strings.Replace(text, "headless: auto ", "headless: false ", 1); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err = desk().EditHostBrowser("f", []byte(text), defaultHostBrowser()); err != nil || string(got) != text {
		t.Errorf("without a change: %v\n%s", err, got)
	}
}

func TestEditingTheHostBrowserReportsEverythingThatIsWrong(t *testing.T) {
	to := HostBrowser{ControlURL: "nothing", Color: "orange", Headless: "sometimes", Executable: "chromium"}
	_, err := desk().EditHostBrowser("f", nil, to)
	var many *problem.ValidationError
	if !errors.As(err, &many) || len(many.Flaws) != 4 {
		t.Errorf("got %v", err)
	}
	for _, text := range []string{"browser: [1]\n", "browzer: {}\n", "browser:\n  color: &c '#FF4500'\n"} {
		if _, err := desk().EditHostBrowser("f", []byte(text), defaultHostBrowser()); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%q: %v", text, err)
		}
	}
}

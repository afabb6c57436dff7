package browser

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func options(build Build) Options {
	return Options{Build: build, Proxy: "http://10.69.0.1:3000", ProfileDir: "/home/b/profile", Home: "/home/b"}
}

// Flags that take a wall away. None of them may ever be in a launch line, whatever its value.
var forbidden = []string{
	"no-sandbox", "disable-setuid-sandbox", "disable-seccomp-filter-sandbox", "disable-namespace-sandbox",
	"disable-gpu-sandbox", "allow-sandbox-debugging",
	"no-zygote", "single-process", "in-process-gpu",
	"remote-allow-origins", "remote-debugging-port", "remote-debugging-address", "enable-automation",
	"disable-web-security", "disable-site-isolation-trials", "disable-site-isolation-for-policy", "isolate-origins",
	"ignore-certificate-errors", "ignore-certificate-errors-spki-list", "allow-running-insecure-content",
	"allow-file-access-from-files", "allow-file-access", "load-extension", "enable-unsafe-extension-debugging",
	"proxy-pac-url", "proxy-auto-detect", "no-proxy-server", "host-resolver-rules",
	"enable-logging", "log-net-log", "ssl-key-log-file", "remote-debugging-io-pipes",
	"renderer-cmd-prefix", "gpu-launcher", "utility-cmd-prefix", "browser-subprocess-path",
	"unsafely-treat-insecure-origin-as-secure", "disable-popup-blocking",
}

func TestTheLaunchLineTakesNoWallAway(t *testing.T) {
	for _, build := range []Build{Shell, Full} {
		line, err := Command(options(build))
		if err != nil {
			t.Fatal(err)
		}
		for _, argument := range line[1:] {
			name, value, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
			if slices.Contains(forbidden, name) {
				t.Errorf("%s: %s", build, argument)
			}
			if name == "disable-features" {
				for _, feature := range strings.Split(value, ",") {
					if strings.Contains(feature, "Isolat") || strings.Contains(feature, "Sandbox") {
						t.Errorf("%s: %s", build, feature)
					}
				}
			}
		}
	}
}

func TestTheLaunchLineIsAsWritten(t *testing.T) {
	for _, build := range []Build{Shell, Full} {
		line, err := Command(options(build))
		if err != nil {
			t.Fatal(err)
		}
		env, err := Environment(options(build))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(line, "\n") + "\n\n" + strings.Join(env, "\n") + "\n"
		golden := filepath.Join("testdata", string(build)+".launch")
		if os.Getenv("CLAWJAIL_UPDATE") != "" {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from %s (CLAWJAIL_UPDATE=1 rewrites it):\n%s", build, golden, got)
		}
	}
}

func TestNoFlagIsGivenTwice(t *testing.T) {
	for _, build := range []Build{Shell, Full} {
		line, err := Command(options(build))
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		for _, argument := range line[1 : len(line)-1] {
			name, _, _ := strings.Cut(argument, "=")
			if seen[name] {
				t.Errorf("%s: %s twice: the last one wins", build, name)
			}
			seen[name] = true
		}
		if last := line[len(line)-1]; last != blank {
			t.Errorf("%s opens %s", build, last)
		}
	}
}

func TestBadOptionsMakeNoLaunchLine(t *testing.T) {
	tests := map[string]func(*Options){
		"no build":                func(o *Options) { o.Build = "" },
		"another build":           func(o *Options) { o.Build = "firefox" },
		"no proxy":                func(o *Options) { o.Proxy = "" },
		"direct":                  func(o *Options) { o.Proxy = "direct://" },
		"proxy list":              func(o *Options) { o.Proxy = "http://10.0.0.1:3000,direct://" },
		"proxy rules":             func(o *Options) { o.Proxy = "http=10.0.0.1:3000;https=direct" },
		"socks proxy":             func(o *Options) { o.Proxy = "socks5://10.0.0.1:3000" },
		"proxy with user":         func(o *Options) { o.Proxy = "http://a:b@10.0.0.1:3000" },
		"proxy without port":      func(o *Options) { o.Proxy = "http://10.0.0.1" },
		"proxy with port 0":       func(o *Options) { o.Proxy = "http://10.0.0.1:0" },
		"proxy with path":         func(o *Options) { o.Proxy = "http://10.0.0.1:3000/x" },
		"no profile":              func(o *Options) { o.ProfileDir = "" },
		"relative profile":        func(o *Options) { o.ProfileDir = "profile" },
		"climbing profile":        func(o *Options) { o.ProfileDir = "/home/b/../c" },
		"no home":                 func(o *Options) { o.Home = "" },
		"home of two lines":       func(o *Options) { o.Home = "/home\n/b" },
		"relative binary":         func(o *Options) { o.Binary = "chromium" },
		"huge window":             func(o *Options) { o.Width = 100000 },
		"negative window":         func(o *Options) { o.Height = -1 },
		"language with a comma":   func(o *Options) { o.Language = "en,de" },
		"language that is a flag": func(o *Options) { o.Language = "en --no-sandbox" },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(Shell)
			spoil(&o)
			if line, err := Command(o); problem.CodeOf(err) != problem.BadConfig || line != nil {
				t.Errorf("got %q, %v", line, err)
			}
			if env, err := Environment(o); problem.CodeOf(err) != problem.BadConfig || env != nil {
				t.Errorf("got %q, %v", env, err)
			}
		})
	}
	o := Options{}
	err := o.Validate()
	for _, field := range []string{"build", "proxy", "profile_dir", "home"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not reported in %v", field, err)
		}
	}
}

func TestTheSandboxIsOffOnlyWhereJailsDoNotLetItBe(t *testing.T) {
	for _, build := range []Build{Shell, Full} {
		o := options(build)
		with, err := Command(o)
		if err != nil {
			t.Fatal(err)
		}
		o.NoSandbox = true
		without, err := Command(o)
		if err != nil {
			t.Fatal(err)
		}
		if rest := slices.DeleteFunc(without, func(a string) bool { return a == "--no-sandbox" }); len(without) != len(with)+1 || !slices.Equal(rest, with) {
			t.Errorf("%s: %q is not %q and that", build, without, with)
		}
	}
}

package template

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestMirrorsOfTheHost(t *testing.T) {
	const bookworm = "ID=debian\nVERSION_CODENAME=bookworm\n"
	public := [2]string{publicMirror, publicSecurityMirror}
	tests := []struct {
		name  string
		files map[string]string
		want  [2]string
	}{
		{"nothing", map[string]string{}, public},
		{"one-line", map[string]string{
			"etc/os-release":       bookworm,
			"etc/apt/sources.list": "deb-src http://a/debian bookworm main\ndeb http://near/debian bookworm main contrib # c\ndeb http://near/debian-security bookworm-security main\n",
		}, [2]string{"http://near/debian", "http://near/debian-security"}},
		{"options", map[string]string{
			"etc/os-release":       bookworm,
			"etc/apt/sources.list": "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] https://near/debian/ bookworm main\n",
		}, [2]string{"https://near/debian/", publicSecurityMirror}},
		{"deb822", map[string]string{
			"etc/os-release": bookworm,
			"etc/apt/sources.list.d/debian.sources": "Types: deb deb-src\n# why\nURIs: http://near/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n" +
				"Types: deb\nURIs: http://near/sec\nSuites: bookworm-security\nComponents: main\n",
		}, [2]string{"http://near/debian", "http://near/sec"}},
		{"disabled", map[string]string{
			"etc/os-release":                   bookworm,
			"etc/apt/sources.list.d/d.sources": "Enabled: no\nTypes: deb\nURIs: http://near/debian\nSuites: bookworm\nComponents: main\n",
		}, public},
		{"another release", map[string]string{
			"etc/os-release":       "ID=debian\nVERSION_CODENAME=trixie\n",
			"etc/apt/sources.list": "deb http://near/debian bookworm main\n",
		}, public},
		{"Ubuntu", map[string]string{
			"etc/os-release":       "ID=ubuntu\nVERSION_CODENAME=bookworm\n",
			"etc/apt/sources.list": "deb http://near/debian bookworm main\n",
		}, public},
		{"packages of others", map[string]string{
			"etc/os-release":                        bookworm,
			"etc/apt/sources.list.d/a.list":         "deb [signed-by=/k/other.gpg] http://other/debian bookworm main\ndeb http://other/prod bookworm main\n",
			"etc/apt/sources.list.d/b.list":         "deb http://unsigned/debian bookworm main\n",
			"etc/apt/sources.list.d/debian.sources": "Types: deb\nURIs: http://near/debian\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
		}, [2]string{"http://near/debian", publicSecurityMirror}},
		{"no http", map[string]string{
			"etc/os-release":       bookworm,
			"etc/apt/sources.list": "deb cdrom:[x]/ bookworm main\ndeb file:/srv/debian bookworm main\n",
		}, public},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := testStore(t)
			s.hostRoot = t.TempDir()
			put(t, s.hostRoot, tt.files)
			m := s.chooseMirrors("bookworm")
			if got := [2]string{m.main, m.security}; got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestMirrorsOfTheEnvironmentWin(t *testing.T) {
	env := map[string]string{EnvDebianMirror: "https://mine/debian", EnvDebianSecurityMirror: "http://mine/security"}
	s := testStore(t, func(c *Config) { c.Getenv = func(name string) string { return env[name] } })
	s.hostRoot = t.TempDir()
	put(t, s.hostRoot, map[string]string{
		"etc/os-release": "ID=debian\nVERSION_CODENAME=bookworm\n", "etc/apt/sources.list": "deb http://near/debian bookworm main\n",
		"usr/share/keyrings/debian-archive-keyring.gpg": "key",
	})
	m, err := s.findMirrors("bookworm")
	if err != nil {
		t.Fatal(err)
	}
	want := mirrors{"https://mine/debian", "http://mine/security", filepath.Join(s.hostRoot, debianKeyring)}
	if diff := cmp.Diff(want, m, cmp.AllowUnexported(mirrors{})); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"ftp://mine/debian", "mine/debian", "http://mine/debian bookworm main\ndeb http://evil/", "http://a/[trusted=yes]", "http://a/debian?x"} {
		env[EnvDebianMirror] = bad
		_, err := s.findMirrors("bookworm")
		wantCode(t, err, problem.BadConfig)
	}
}

func TestMissingKeyringIsSaid(t *testing.T) {
	s := testStore(t)
	s.hostRoot = t.TempDir()
	_, err := s.findMirrors("bookworm")
	wantCode(t, err, problem.ToolMissing)
}

func TestListHasTheSecuritySuite(t *testing.T) {
	m := mirrors{main: "http://m/debian", security: "http://s/debian-security"}
	want := "deb [o] http://m/debian bookworm main\ndeb [o] http://m/debian bookworm-updates main\ndeb [o] http://s/debian-security bookworm-security main\n"
	if got := m.list("bookworm", "[o] "); got != want {
		t.Errorf("got %q", got)
	}
}

func FuzzSourcesAreMirrorsOrNothing(f *testing.F) {
	f.Add([]byte("deb [a=b] http://h/debian bookworm main\n"))
	f.Add([]byte("Types: deb\nURIs: http://h/debian\nSuites: bookworm\nComponents: main\n"))
	f.Add([]byte("deb [\n x:\n\n\tz"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, source := range append(parseSourcesList(data), parseDeb822(data)...) {
			if !isMirror(source.uri) {
				t.Fatalf("%q is not a mirror", source.uri)
			}
		}
	})
}

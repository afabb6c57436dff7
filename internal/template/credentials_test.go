package template

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

// cleanTree has what looks like credentials and is none.
func cleanTree() map[string]string {
	return map[string]string{
		"etc/passwd":                      "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/usr/sbin/nologin\nnode:x:1001:1001::/srv/node:/bin/sh\nabsent:x:9:9::/nowhere:/bin/sh\n",
		"etc/ssl/certs/ca.pem":            "public",
		"etc/ssl/private/":                "",
		"etc/ssh/ssh_config":              "Host *",
		"etc/chromium/policies/managed/":  "",
		"home/browser/.ssh/":              "",
		"root/.npmrc":                     "registry=https://registry/\n",
		"srv/node/.profile":               "umask 022",
		"usr/lib/python3/http/cookies.py": "",
		"usr/lib/chromium/chromium":       "",
	}
}

func TestEveryKindOfCredentialIsFound(t *testing.T) {
	find := func(t *testing.T, files map[string]string) []string {
		dir := t.TempDir()
		put(t, dir, cleanTree())
		put(t, dir, files)
		entries, err := statTree(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		found, err := credentialsOf(dir, entries)
		if err != nil {
			t.Fatal(err)
		}
		err = refuseCredentials(dir, entries)
		if len(found) > 0 {
			wantCode(t, err, problem.BadTemplate)
		} else if err != nil {
			t.Error(err)
		}
		return found
	}
	if found := find(t, nil); len(found) > 0 {
		t.Fatalf("a clean tree has credentials: %v", found)
	}
	plants := map[string]string{
		"/home/browser/.config/chromium":              "home/browser/.config/chromium/Local State",
		"/srv/node/.ssh":                              "srv/node/.ssh/id_ed25519", // a home that only passwd knows
		"/home/other/.aws":                            "home/other/.aws/credentials",
		"/root/.docker/config.json":                   "root/.docker/config.json",
		"/root/.bash_history":                         "root/.bash_history",
		"/state/.pki":                                 "state/.pki/nssdb/pkcs11.txt",
		"/opt/app/.netrc":                             "opt/app/.netrc",
		"/etc/ssh/ssh_host_rsa_key":                   "etc/ssh/ssh_host_rsa_key",
		"/etc/ssl/private/server.key":                 "etc/ssl/private/server.key",
		"/run/secrets/token":                          "run/secrets/token",
		"/etc/NetworkManager/system-connections/home": "etc/NetworkManager/system-connections/home",
	}
	for _, name := range credentialNames() {
		plants["/var/opt/p/"+name] = "var/opt/p/" + name
	}
	for _, name := range credentialsInHome() {
		plants["/root/"+name] = "root/" + name + "/file"
	}
	for want, plant := range plants {
		t.Run(want, func(t *testing.T) {
			found := find(t, map[string]string{plant: "x"})
			if len(found) == 0 || found[0] != want {
				t.Errorf("found %v, want %s", found, want)
			}
		})
	}
	if found := find(t, map[string]string{"srv/node/.npmrc": "//registry/:_authToken=npm_x\n"}); len(found) != 1 || found[0] != "/srv/node/.npmrc" {
		t.Errorf("a login in .npmrc: found %v", found)
	}
}

func TestPathsAreResolvedInsideTheTree(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{
		"usr/bin/sh": "", "bin": "->usr/bin", "abs": "->/usr/bin", "out": "->../../../../usr/bin", "loop": "->/loop", "etc/alternatives/sh": "->/bin/sh",
	})
	if err := os.Chmod(dir+"/usr/bin/sh", 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	got := map[string]string{}
	for _, name := range []string{"/bin/sh", "/abs/sh", "/out/sh", "/etc/alternatives/sh", "/../../bin/../bin/sh", "/loop", "/missing"} {
		resolved, err := resolve(root, name)
		if err != nil {
			resolved = "error"
		}
		got[name] = resolved
	}
	want := map[string]string{
		"/bin/sh": "usr/bin/sh", "/abs/sh": "usr/bin/sh", "/out/sh": "usr/bin/sh", "/etc/alternatives/sh": "usr/bin/sh",
		"/../../bin/../bin/sh": "usr/bin/sh", "/loop": "error", "/missing": "error",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !isProgram(root, "/abs/sh") || isProgram(root, "/loop") || isProgram(root, "/usr") {
		t.Error("programs are not told from other things")
	}
}

func TestNewestOfSeveralMatchingProgramsIsTaken(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"1100", "1200"} {
		name := "ms-playwright/chromium-" + version + "/chrome-linux/chrome"
		put(t, dir, map[string]string{name: "x"})
		if err := os.Chmod(dir+"/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	got, err := firstProgram(root, []string{"/usr/bin/none", "/ms-playwright/chromium-*/chrome-linux*/chrome"})
	if err != nil || got != "/ms-playwright/chromium-1200/chrome-linux/chrome" {
		t.Errorf("got %q, %v", got, err)
	}
}

package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/clawjail/clawjail/internal/problem"
)

// credentialNames are files and folders that no template may have anywhere: what a browser keeps in a profile.
func credentialNames() []string {
	return []string{
		"Cookies", "Cookies-journal", "cookies.sqlite", "Login Data", "Login Data For Account", "Local Storage", "Session Storage",
		"SingletonLock", "SingletonCookie", "SingletonSocket", "logins.json", "key4.db", "key3.db", "signons.sqlite",
		".git-credentials", ".netrc", ".pgpass", ".vault-token",
	}
}

// credentialsInHome are paths below a home folder that no template may have.
func credentialsInHome() []string {
	return []string{
		".config/chromium", ".config/google-chrome", ".config/BraveSoftware", ".config/microsoft-edge", ".mozilla",
		".cache/chromium", ".cache/google-chrome", ".pki", ".ssh", ".aws", ".azure", ".config/gcloud", ".config/gh", ".kube",
		".docker/config.json", ".gnupg", ".config/git/credentials", ".config/op", ".password-store", ".local/share/keyrings",
		".config/rclone", ".terraform.d/credentials.tfrc.json", ".config/doctl", ".claude/.credentials.json", ".codex/auth.json",
		".cargo/credentials.toml", ".cargo/credentials", ".gem/credentials", ".pypirc", ".config/containers/auth.json",
		".bash_history", ".python_history", ".node_repl_history",
	}
}

// credentialFolders are folders that must have no file in them.
func credentialFolders() []string {
	return []string{"run/secrets", "var/run/secrets", "etc/ssl/private", "etc/NetworkManager/system-connections", "etc/wpa_supplicant"}
}

// credentialContents are files that may exist, unless one of the texts stands in them.
func credentialContents() map[string][]string {
	return map[string][]string{
		".npmrc":                     {"_authToken", "_auth=", "_password"},
		".yarnrc.yml":                {"npmAuthToken"},
		".config/pip/pip.conf":       {"@"}, // a login in an index URL
		".config/composer/auth.json": {"password", "token"},
	}
}

// refuseCredentials fails when there is a credential in a tree that is about to become a template.
func refuseCredentials(rootfs string, entries []entry) error {
	found, err := credentialsOf(rootfs, entries)
	if err != nil || len(found) == 0 {
		return err
	}
	return problem.New(problem.BadTemplate, "remove them from the source: every jail of this template would have them",
		"the source has credentials in it: %s", strings.Join(found, ", ")).With("credentials", found)
}

// credentialsOf returns the paths of the first credentials in a tree with the given entries, in order.
func credentialsOf(rootfs string, entries []entry) ([]string, error) {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil, fmt.Errorf("look for credentials: %w", err)
	}
	defer root.Close()
	found, err := findCredentials(root, entries)
	if err != nil {
		return nil, fmt.Errorf("look for credentials: %w", err)
	}
	return found[:min(len(found), maxListed)], nil
}

func findCredentials(root *os.Root, entries []entry) ([]string, error) {
	var found []string
	names := map[string]bool{}
	for _, name := range credentialNames() {
		names[name] = true
	}
	for i := range entries {
		name := entries[i].path
		base := path.Base(name)
		hostKey := strings.HasPrefix(base, "ssh_host_") && strings.HasSuffix(base, "_key")
		if names[base] || hostKey {
			found = append(found, "/"+name)
		}
	}
	inHomes, err := homeCredentials(root)
	if err != nil {
		return nil, err
	}
	found = append(found, inHomes...)
	for _, dir := range credentialFolders() {
		if linked(root, dir) {
			continue
		}
		entries, err := fs.ReadDir(root.FS(), dir)
		if err != nil && !missing(err) {
			return nil, err
		}
		for _, entry := range entries {
			found = append(found, "/"+path.Join(dir, entry.Name()))
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

func homeCredentials(root *os.Root) ([]string, error) {
	homes, err := homeFolders(root)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, home := range homes {
		for _, name := range credentialsInHome() {
			full := path.Join(home, name)
			// An empty folder is no credential.
			filled, err := hasFiles(root, full)
			if err != nil {
				return nil, err
			}
			if filled {
				found = append(found, "/"+full)
			}
		}
		contents := credentialContents()
		for _, name := range sortedKeys(contents) {
			full := path.Join(home, name)
			text, err := readText(root, full)
			if err != nil && !missing(err) {
				return nil, err
			}
			if slices.ContainsFunc(contents[name], func(part string) bool { return strings.Contains(text, part) }) {
				found = append(found, "/"+full)
			}
		}
	}
	return found, nil
}

// homeFolders are all folders of a tree where somebody is at home.
func homeFolders(root *os.Root) ([]string, error) {
	homes := []string{"root", "home/" + jailUserName, "state", "workspace"}
	for _, dir := range []string{"home", "Users"} {
		if linked(root, dir) {
			continue
		}
		entries, err := fs.ReadDir(root.FS(), dir)
		if err != nil && !missing(err) {
			return nil, err
		}
		for _, entry := range entries {
			homes = append(homes, path.Join(dir, entry.Name()))
		}
	}
	text, err := readText(root, "etc/passwd")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		if fields := strings.Split(line, ":"); len(fields) >= 6 && path.IsAbs(fields[5]) {
			home, err := resolve(root, fields[5])
			if err != nil || home == "." { // no such folder, or / itself, where most services say they live
				continue
			}
			homes = append(homes, home)
		}
	}
	slices.Sort(homes)
	return slices.Compact(homes), nil
}

// hasFiles reports whether there is anything but empty folders at a path.
func hasFiles(root *os.Root, name string) (bool, error) {
	info, err := root.Lstat(name)
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() {
		return true, nil
	}
	found := false
	err = fs.WalkDir(root.FS(), name, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found = true
			return fs.SkipAll
		}
		return err
	})
	return found, err
}

// missing reports that a path does not exist, or that it would lead through what is no folder.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

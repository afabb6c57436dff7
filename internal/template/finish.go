package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// jailUser is the user and the group of what runs in a jail, as the template's own files know it, with its name where a recipe
// has no other.
const (
	jailUser     = 1000
	jailUserName = "browser"
)

// emptyFolders exist in every template, empty: what a jail needs there is mounted over them.
func emptyFolders() []folder {
	return []folder{
		{path: "proc", mode: 0o555}, {path: "sys", mode: 0o555}, {path: "dev", mode: 0o755}, {path: "run", mode: 0o755},
		{path: "tmp", mode: 0o777 | fs.ModeSticky}, {path: "var/tmp", mode: 0o777 | fs.ModeSticky},
		{path: "dev/pts", mode: 0o755}, {path: "dev/shm", mode: 0o777 | fs.ModeSticky}, {path: "dev/mqueue", mode: 0o755},
		{path: "run/clawjail", mode: 0o755}, {path: "run/hermit", mode: 0o755}, {path: "run/lock", mode: 0o755},
		{path: "workspace", mode: 0o755},
		{path: "state", mode: 0o755, keep: true},
		{path: "home/" + jailUserName, mode: 0o755, keep: true},
	}
}

type folder struct {
	path string
	mode fs.FileMode
	// keep leaves what is in it: it would be somebody's data, and the check for credentials has to see it.
	keep bool
}

// emptied are folders whose contents, and files that themselves, are of no use in a template: lists, caches and logs of
// the build, identities that every jail would share, and documentation.
func emptied() (folders, files []string) {
	return []string{
			"var/lib/apt/lists", "var/cache/apt", "var/cache/debconf", "var/log", "var/cache/man", "var/cache/ldconfig",
			"usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/help", "usr/share/gtk-doc",
			"boot", "etc/apt/apt.conf.d", "etc/apt/auth.conf.d", "etc/apt/sources.list.d", "etc/apt/preferences.d",
			"usr/local/share/ca-certificates", "var/lib/systemd", "var/backups", "var/spool/cron",
		}, []string{
			"debootstrap", "etc/apt/apt.conf", "etc/apt/auth.conf", "var/lib/dbus/machine-id", "etc/resolv.conf", dpkgForBuildPath,
			policyPath, "etc/hostname", "var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old", "var/lib/dpkg/statoverride-old",
			"var/lib/dpkg/available-old", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock", ".dockerenv",
		}
}

// finish makes of any tree one that keeps the promises of a template.
func (b *build) finish(ctx context.Context) error {
	root, err := os.OpenRoot(b.rootfs)
	if err != nil {
		return fmt.Errorf("open the new tree: %w", err)
	}
	defer root.Close()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"make mount points", func() error { return mountPoints(root) }},
		{"remove what is of no use", func() error { return b.trim(root) }},
		{"write system files", func() error { return b.systemFiles(ctx, root) }},
		{"write the recipe's files", func() error { return b.recipeFiles(root) }},
		{"remove privileges", func() error { return stripTree(ctx, b.rootfs) }},
		{"choose fonts", func() error { return b.trimFonts(root) }},
		{"warm the font cache", func() error { return b.warmFonts(ctx, root) }},
		{"find programs", func() error { return b.findPrograms(ctx, root) }},
		// Files of the recipe, and programs that ran in the tree, may have put something in their place.
		{"make mount points again", func() error { return mountPoints(root) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	b.template.Packages, err = b.system.packages(b, ctx, root)
	return err
}

// mountPoints makes the folders that jails mount over, and empties them. A link in place of one of them, or of a folder
// above it, is replaced: it could lead a mount out of the tree.
func mountPoints(root *os.Root) error {
	for _, f := range emptyFolders() {
		if err := realFolder(root, f.path); err != nil {
			return err
		}
		if !f.keep {
			if err := emptyFolder(root, f.path); err != nil {
				return err
			}
		}
		uid := 0
		if f.path == "home/"+jailUserName {
			uid = jailUser
		}
		if err := root.Chown(f.path, uid, uid); err != nil {
			return err
		}
		if err := root.Chmod(f.path, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// realFolder makes sure that every part of a path is a folder and not a link to one.
func realFolder(root *os.Root, name string) error {
	current := ""
	for part := range strings.SplitSeq(name, "/") {
		current = path.Join(current, part)
		info, err := root.Lstat(current)
		if err == nil && info.IsDir() {
			continue
		}
		if err == nil {
			err = root.Remove(current)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := root.Mkdir(current, 0o755); err != nil {
			return err
		}
		if err := root.Chmod(current, 0o755); err != nil { // whatever the umask is
			return err
		}
	}
	return nil
}

// emptyFolder removes what is in a folder. A name that is no folder, or is not there, is left alone.
func emptyFolder(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, child := range names {
		if err := root.RemoveAll(path.Join(name, child)); err != nil {
			return err
		}
	}
	return nil
}

// trim removes what is of no use in a template.
func (b *build) trim(root *os.Root) error {
	for _, name := range b.system.folders {
		if linked(root, name) {
			continue
		}
		if err := emptyFolder(root, name); err != nil {
			return err
		}
	}
	for _, name := range b.system.files {
		if linked(root, path.Dir(name)) {
			continue
		}
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	// dpkg remembers these folders as its own, so the folders stay.
	if err := trimDoc(root); err != nil {
		return err
	}
	return removeMatching(root, "etc/ssh", func(name string) bool { return strings.HasPrefix(name, "ssh_host_") })
}

// linked reports whether a path leads through a symbolic link, or is one. Such a path is another place of the tree,
// which has its own rules.
func linked(root *os.Root, name string) bool {
	current := ""
	for part := range strings.SplitSeq(name, "/") {
		current = path.Join(current, part)
		if info, err := root.Lstat(current); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return true
		}
	}
	return false
}

// trimDoc leaves of the documentation what the licences ask to keep.
func trimDoc(root *os.Root) error {
	const doc = "usr/share/doc"
	if linked(root, doc) {
		return nil
	}
	packages, err := fs.ReadDir(root.FS(), doc)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range packages {
		if !p.IsDir() {
			continue
		}
		dir := path.Join(doc, p.Name())
		if err := removeMatching(root, dir, func(name string) bool { return name != "copyright" }); err != nil {
			return err
		}
	}
	return nil
}

// removeMatching removes entries of a folder, where there is one.
func removeMatching(root *os.Root, dir string, match func(name string) bool) error {
	if linked(root, dir) {
		return nil
	}
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if match(entry.Name()) {
			if err := root.RemoveAll(path.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// systemFiles writes the few files of /etc that a jail needs. A jail has no resolver: names are the gateway's business,
// and what a jail must find by name stands in the hosts file that is mounted when it starts.
func (b *build) systemFiles(ctx context.Context, root *os.Root) error {
	if err := realFolder(root, "etc"); err != nil {
		return err
	}
	files := map[string]string{
		"etc/resolv.conf":   "",
		"etc/hostname":      "jail\n",
		"etc/machine-id":    "",
		"etc/hosts":         "127.0.0.1\tlocalhost\n",
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\nnetworks: files\nprotocols: files\nservices: files\n",
	}
	if b.source.kind == sourceDebian {
		public := mirrors{main: publicMirror, security: publicSecurityMirror}
		files["etc/apt/sources.list"] = public.list(b.recipe.Suite, "")
	}
	for _, name := range sortedKeys(files) {
		if err := writeFile(root, name, files[name], 0o644); err != nil {
			return err
		}
	}
	return b.system.accounts(b, ctx, root)
}

// recipeFiles writes the files of a recipe that is known. An entry of the source at such a place stays, unless it is no file.
func (b *build) recipeFiles(root *os.Root) error {
	if !b.known {
		return nil
	}
	for _, f := range b.recipe.Files {
		name := strings.TrimPrefix(path.Clean(f.Path), "/")
		if b.source.kind != sourceDebian && b.source.kind != sourceBase && isProgram(root, f.Path) {
			continue
		}
		if err := writeFile(root, name, f.Content, f.Mode); err != nil {
			return err
		}
		if err := root.Chown(name, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// accounts makes the jail's user known, and takes every password away.
func accounts(root *os.Root, user, home string) error {
	for _, file := range []struct {
		name, line, first string
		mode              fs.FileMode
	}{
		{"etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh", user, jailUser, jailUser, home), "root:x:0:0:root:/root:/bin/sh", 0o644},
		{"etc/group", fmt.Sprintf("%s:x:%d:", user, jailUser), "root:x:0:", 0o644},
	} {
		text, err := readText(root, file.name)
		if err != nil {
			return err
		}
		if text == "" {
			text = file.first + "\n"
		}
		var lines []string
		for line := range strings.Lines(text) {
			fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if len(fields) < 3 || fields[0] == user || fields[2] == fmt.Sprint(jailUser) {
				continue
			}
			fields[1] = "x" // a password can stand here too
			lines = append(lines, strings.Join(fields, ":"))
		}
		lines = append(lines, file.line)
		if err := writeFile(root, file.name, strings.Join(lines, "\n")+"\n", file.mode); err != nil {
			return err
		}
	}
	for _, name := range []string{"etc/shadow", "etc/gshadow"} {
		text, err := readText(root, name)
		if err != nil {
			return err
		}
		var lines []string
		for line := range strings.Lines(text) {
			fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if len(fields) < 2 || fields[0] == user {
				continue
			}
			fields[1] = "*"
			lines = append(lines, strings.Join(fields, ":"))
		}
		if name == "etc/shadow" {
			lines = append(lines, user+":*:19000:0:99999:7:::")
		} else {
			lines = append(lines, user+":*::")
		}
		if err := writeFile(root, name, strings.Join(lines, "\n")+"\n", 0o600); err != nil {
			return err
		}
	}
	return nil
}

// readText reads a file of the tree; what is no regular file counts as empty.
func readText(root *os.Root, name string) (string, error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	data, err := root.ReadFile(name)
	return string(data), err
}

// writeFile puts a file in place of whatever has its name, never through a link.
func writeFile(root *os.Root, name, content string, mode fs.FileMode) error {
	if err := realFolder(root, path.Dir(name)); err != nil {
		return err
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	// The mode of creation is subject to the umask.
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// stripTree takes setuid and setgid bits and file capabilities from every file, and removes what is no file, folder or
// link: device nodes, sockets and pipes.
func stripTree(ctx context.Context, rootfs string) error {
	return filepath.WalkDir(rootfs, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		switch entry.Type() {
		case fs.ModeSymlink:
			return nil
		case 0, fs.ModeDir:
		default:
			return os.Remove(name)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if mode := info.Mode(); mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			if err := os.Chmod(name, mode&^(fs.ModeSetuid|fs.ModeSetgid)); err != nil {
				return err
			}
		}
		return dropCapabilities(name)
	})
}

// fileCapabilities is the attribute that gives a program capabilities.
const fileCapabilities = "security.capability"

func dropCapabilities(name string) error {
	err := unix.Lremovexattr(name, fileCapabilities)
	if err == nil || noAttribute(err) {
		return nil
	}
	return &fs.PathError{Op: "remove capabilities", Path: name, Err: err}
}

// noAttribute reports that a file has no such attribute, or its filesystem none at all.
func noAttribute(err error) bool {
	return slices.ContainsFunc(missingAttribute(), func(target error) bool { return errors.Is(err, target) })
}

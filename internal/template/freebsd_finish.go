package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// emptiedOnFreeBSD is as emptied, for trees of FreeBSD. usr/share/locale stays: there it has what the C library needs, and not
// translations.
func emptiedOnFreeBSD() (folders, files []string) {
	return []string{
			"boot", "rescue", "usr/src", "usr/obj", "usr/tests", "usr/lib/debug", "usr/share/man", "usr/share/info", "usr/share/doc",
			"usr/share/examples", "usr/local/man", "usr/local/share/man", "usr/local/share/doc", "usr/local/share/info",
			"usr/local/share/examples", "var/cache/pkg", "var/db/freebsd-update", "var/db/entropy", "var/log", "var/audit", "var/backups",
			"var/cron/tabs", "var/mail", "var/db/pkg/repos",
		}, []string{
			"etc/resolv.conf", "etc/hostid", "etc/machine-id", "etc/hostname", "entropy", "var/db/etcupdate", "var/db/mergemaster.mtree",
			"etc/rc.conf.local", "etc/localtime", ".bastille", "var/db/dhclient.leases.vnet0",
		}
}

// systemFreeBSD makes what the host's boot would make in a jail that boots: ours do not. The program loader finds the
// libraries of packages by a file that /etc/rc.d/ldconfig writes otherwise, with the folders of usr/local/libdata/ldconfig.
func (b *build) systemFreeBSD(ctx context.Context, root *os.Root) error {
	if err := freebsdAccounts(root, b.userName(), b.userHome()); err != nil {
		return err
	}
	etc := filepath.Join(b.rootfs, "etc")
	if _, err := b.hostRun(ctx, time.Minute, "pwd_mkdb", "-p", "-d", etc, filepath.Join(etc, "master.passwd")); err != nil {
		return err
	}
	folders, err := libraryFolders(root)
	if err != nil {
		return err
	}
	if err := realFolder(root, "var/run"); err != nil {
		return err
	}
	_, err = b.insideFreeBSD(ctx, time.Minute, true, append([]string{"/sbin/ldconfig", "-elf"}, folders...)...)
	return err
}

// libraryFolders are the folders of libraries that the loader must know.
func libraryFolders(root *os.Root) ([]string, error) {
	out := []string{"/lib", "/usr/lib", "/usr/lib/compat", "/usr/local/lib"}
	const from = "usr/local/libdata/ldconfig"
	entries, err := fs.ReadDir(root.FS(), from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		text, err := readText(root, from+"/"+entry.Name())
		if err != nil {
			return nil, err
		}
		for _, folder := range strings.Fields(text) {
			if strings.HasPrefix(folder, "/") && !slices.Contains(out, folder) {
				out = append(out, folder)
			}
		}
	}
	return slices.DeleteFunc(out, func(folder string) bool {
		resolved, err := resolve(root, folder)
		if err != nil {
			return true
		}
		info, err := root.Lstat(resolved)
		return err != nil || !info.IsDir()
	}), nil
}

// freebsdAccounts makes the jail's user known, and takes every password away. master.passwd has ten fields (passwd(5)); the
// others of its kind are made of it by pwd_mkdb(8).
func freebsdAccounts(root *os.Root, user, home string) error {
	text, err := readText(root, "etc/master.passwd")
	if err != nil {
		return err
	}
	if text == "" {
		text = "root:*:0:0::0:0:root:/root:/bin/sh\n"
	}
	var lines []string
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if strings.HasPrefix(line, "#") || len(fields) != 10 || fields[0] == user || fields[2] == fmt.Sprint(jailUser) {
			continue
		}
		fields[1] = "*"
		lines = append(lines, strings.Join(fields, ":"))
	}
	lines = append(lines, fmt.Sprintf("%s:*:%d:%d::0:0::%s:/bin/sh", user, jailUser, jailUser, home))
	if err := writeFile(root, "etc/master.passwd", strings.Join(lines, "\n")+"\n", 0o600); err != nil {
		return err
	}
	if text, err = readText(root, "etc/group"); err != nil {
		return err
	}
	lines = nil
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if strings.HasPrefix(line, "#") || len(fields) != 4 || fields[0] == user || fields[2] == fmt.Sprint(jailUser) {
			continue
		}
		fields[1] = "*"
		lines = append(lines, strings.Join(fields, ":"))
	}
	lines = append(lines, fmt.Sprintf("%s:*:%d:", user, jailUser))
	return writeFile(root, "etc/group", strings.Join(lines, "\n")+"\n", 0o644)
}

func (b *build) userName() string {
	if b.recipe.User != "" {
		return b.recipe.User
	}
	return jailUserName
}

func (b *build) userHome() string {
	if b.recipe.User != "" {
		return b.recipe.Home
	}
	return "/home/" + jailUserName
}

// freebsdInstalled asks pkg(8) for what is installed in the tree. A tree without a database of packages has none.
func (b *build) freebsdInstalled(ctx context.Context, root *os.Root) (map[string]string, error) {
	if _, err := root.Lstat("var/db/pkg/local.sqlite"); err != nil {
		return nil, nil
	}
	text, err := b.hostRun(ctx, time.Minute, "pkg", "-r", b.rootfs, "query", "%n %v")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			out[name] = version
		}
	}
	return out, nil
}

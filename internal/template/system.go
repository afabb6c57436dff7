package template

import (
	"context"
	"io"
	"os"
	"strings"
	"time"
)

// system is what differs between trees with programs for Linux and for FreeBSD when one is finished. It is chosen once.
type system struct {
	// Folders whose contents, and files that themselves, are of no use in a template.
	folders, files []string
	// fontCache makes the cache of fonts, and fonts is where it is.
	fontCache, fonts string
	// noto is the folder of the Noto fonts.
	noto string
	// accounts makes the jail's user known, and what else the host's boot would make.
	accounts func(b *build, ctx context.Context, root *os.Root) error
	// run runs a program of the tree as the jail's user, without a network, and returns what it printed.
	run func(b *build, ctx context.Context, limit time.Duration, argv ...string) (string, error)
	// packages are those that are installed in the tree, with their versions.
	packages func(b *build, ctx context.Context, root *os.Root) (map[string]string, error)
}

func systemOf(goos string) system {
	if goos == freebsd {
		folders, files := emptiedOnFreeBSD()
		return system{
			folders: folders, files: files,
			fontCache: "/usr/local/bin/fc-cache", fonts: "var/db/fontconfig", noto: "usr/local/share/fonts/noto", // as the ports have them
			accounts: (*build).systemFreeBSD, run: (*build).runFreeBSD, packages: (*build).freebsdInstalled,
		}
	}
	folders, files := emptied()
	return system{
		folders: folders, files: files, fontCache: "/usr/bin/fc-cache", fonts: "var/cache/fontconfig",
		noto: "usr/share/fonts/truetype/noto",
		accounts: func(b *build, _ context.Context, root *os.Root) error {
			return accounts(root, b.userName(), b.userHome())
		},
		run: (*build).runLinux,
		packages: func(_ *build, _ context.Context, root *os.Root) (map[string]string, error) {
			return installedPackages(root)
		},
	}
}

// inTree is run of the tree's system.
func (b *build) inTree(ctx context.Context, limit time.Duration, argv ...string) (string, error) {
	return b.system.run(b, ctx, limit, argv...)
}

func (b *build) runLinux(ctx context.Context, limit time.Duration, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var printed strings.Builder
	err := b.out.run(ctx, command{
		argv: argv, env: append(chrootEnv(), "HOME=/tmp"), chroot: b.rootfs, unprivileged: true, stdout: io.MultiWriter(&printed, b.out),
	})
	return printed.String(), err
}

func (b *build) runFreeBSD(ctx context.Context, limit time.Duration, argv ...string) (string, error) {
	return b.insideFreeBSD(ctx, limit, false, append([]string{"/usr/bin/env", "HOME=/tmp", "LC_ALL=C.UTF-8"}, argv...)...)
}

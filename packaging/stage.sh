#!/bin/sh
# Puts the files of clawjail in their places, or takes them away: `make install`, `make uninstall` and the packages are this.
# What it needs is in the environment:
#
#   DESTDIR    put before every path; then no root is needed. Default: none
#   PREFIX     default /usr/local
#   PROGRAMS   the folder of the built programs
#   MANUAL     what packaging/manual wrote
#   CONFIG     no: leave out the configuration, which a package has as a file of its own
set -eu
cd "$(dirname "$0")/.."

verb=${1:-}
case $verb in
install | uninstall) ;;
*)
	echo "usage: packaging/stage.sh install|uninstall" >&2
	exit 2
	;;
esac
root=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
programs=${PROGRAMS:-bin}
manual=${MANUAL:-out/manual}
case $prefix in
/*) ;;
*)
	echo "error: PREFIX=$prefix is not an absolute path" >&2
	exit 2
	;;
esac
# Where systemd looks. sysusers.d is read below /usr/lib alone, and units are read below /usr/local/lib too.
units=$prefix/lib/systemd/system
sysusers=/usr/lib/sysusers.d

# put MODE FILE PLACE: one file.
put() {
	place=$root$3
	if [ "$verb" = uninstall ]; then
		rm -f "$place"
		return
	fi
	[ -d "${place%/*}" ] || mkdir -p "${place%/*}"
	install -m "$1" "$2" "$place"
}

put 0755 "$programs/clawjail" "$prefix/bin/clawjail"
# The helper of `clawjail spawn` is not setuid: an operator who wants that mode makes it so, see docs/spawn.md.
put 0755 "$programs/clawjail-spawn" "$prefix/libexec/clawjail-spawn"
# What pods of Kubernetes begin with: clawjail template image --shim puts it into an image.
put 0755 "$programs/clawjail-shim" "$prefix/libexec/clawjail-shim"

for unit in clawjail.service clawjail-hostd.service clawjail-template.service; do
	filled=$(mktemp)
	sed "s|^ExecStart=/usr/local/bin/|ExecStart=$prefix/bin/|" packaging/systemd/$unit >"$filled"
	put 0644 "$filled" "$units/$unit"
	rm -f "$filled"
done
put 0644 packaging/systemd/clawjail.sysusers $sysusers/clawjail.conf

if [ "$verb" = uninstall ]; then
	# By their names: there may be pages of an older version.
	rm -f "$root$prefix"/share/man/man1/clawjail.1 "$root$prefix"/share/man/man1/clawjail-*.1
else
	for page in "$manual"/man1/*.1; do
		put 0644 "$page" "$prefix/share/man/man1/${page##*/}"
	done
fi
put 0644 "$manual/completions/clawjail" "$prefix/share/bash-completion/completions/clawjail"
put 0644 "$manual/completions/_clawjail" "$prefix/share/zsh/site-functions/_clawjail"
put 0644 "$manual/completions/clawjail.fish" "$prefix/share/fish/vendor_completions.d/clawjail.fish"

# Each file is where it is in a checkout, so that pages and examples find what they name.
if [ "$verb" = uninstall ]; then
	rm -rf "$root$prefix/share/doc/clawjail"
else
	for file in README.md CHANGELOG.md LICENSE SECURITY.md clawbots.yml.example docs/*.md packaging/clawbots.schema.json packaging/clawjail.yml \
		packaging/freebsd/spawn.conf packaging/proxy/*; do
		put 0644 "$file" "$prefix/share/doc/clawjail/$file"
	done
	find examples packaging/kubernetes -type f | LC_ALL=C sort | while read -r file; do
		put "$([ -x "$file" ] && echo 0755 || echo 0644)" "$file" "$prefix/share/doc/clawjail/$file"
	done
fi

# The configuration is the operator's as soon as it is there: it is neither replaced nor removed.
config=/etc/clawjail/clawjail.yml
if [ "$verb" = install ] && [ "${CONFIG:-yes}" != no ] && [ ! -e "$root$config" ]; then
	put 0644 packaging/clawjail.yml $config
fi

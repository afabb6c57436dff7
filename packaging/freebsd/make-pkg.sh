#!/bin/sh
# Makes a package of clawjail for pkg(8): builds the programs for FreeBSD, stages the tree and calls `pkg create`. Where there
# is no pkg(8) the staged tree stays, with the command that makes the package of it on a FreeBSD host.
set -eu
cd "$(dirname "$0")/../.."

if [ $# -lt 1 ] || [ $# -gt 3 ]; then
	echo "usage: packaging/freebsd/make-pkg.sh VERSION [amd64|arm64] [FOLDER]" >&2
	exit 2
fi
version=$1
arch=${2:-amd64}
out=${3:-out/freebsd-$arch}
case $version in
'' | *[!A-Za-z0-9.,_+]*) echo "error: \"$version\" is no version of a package" >&2; exit 2 ;;
esac
case $arch in
amd64) abi='FreeBSD:*:amd64' ;;
arm64) abi='FreeBSD:*:aarch64' ;;
*) echo "error: \"$arch\" is neither amd64 nor arm64" >&2; exit 2 ;;
esac

here=packaging/freebsd
stage=$out/stage
rm -rf "$stage"
mkdir -p "$out"
out=$(cd "$out" && pwd)
stage=$out/stage
put() { # MODE FILE PLACE
	mkdir -p "$stage/usr/local/$(dirname "$3")"
	install -m "$1" "$2" "$stage/usr/local/$3"
}
if [ -z "${CLAWJAIL_PROGRAMS:-}" ]; then
	mkdir -p "$out/programs"
	for program in clawjail clawjail-spawn; do
		CGO_ENABLED=0 GOOS=freebsd GOARCH=$arch go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$out/programs/" "./cmd/$program"
	done
	CLAWJAIL_PROGRAMS=$out/programs
fi
put 0755 "$CLAWJAIL_PROGRAMS/clawjail" bin/clawjail
# The helper of `clawjail spawn` is not setuid as it is packaged: an operator who wants that mode makes it so.
put 0555 "$CLAWJAIL_PROGRAMS/clawjail-spawn" libexec/clawjail-spawn
put 0644 $here/spawn.conf etc/clawjail/spawn.conf.sample
put 0555 $here/rc.d/clawjail etc/rc.d/clawjail
put 0555 $here/rc.d/clawjail_hostd etc/rc.d/clawjail_hostd
put 0644 $here/newsyslog.conf etc/newsyslog.conf.d/clawjail.conf
put 0755 $here/pf-anchor.sh libexec/clawjail/pf-anchor
put 0644 docs/freebsd.md share/doc/clawjail/freebsd.md
for file in clawjail.pf.conf devfs.rules loader.conf sysctl.conf; do
	put 0644 $here/$file share/examples/clawjail/$file
done
put 0644 packaging/clawjail.yml share/examples/clawjail/clawjail.yml
cp $here/plist "$out/plist"
sed -e "s/@VERSION@/$version/" -e "s/@ABI@/$abi/" $here/MANIFEST.in >"$out/MANIFEST"

create="pkg create -M $out/MANIFEST -p $out/plist -r $stage -o $out"
if command -v pkg >/dev/null 2>&1; then
	$create
	echo "the package is in $out"
else
	echo "the tree is in $stage; there is no pkg(8) here, so on a FreeBSD host: $create"
fi

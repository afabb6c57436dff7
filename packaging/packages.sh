#!/bin/sh
# Writes the packages for Debian, Ubuntu and Fedora: out/packages/*.deb and *.rpm, for amd64 and arm64. The same commit and
# version give the same bytes. When those of an architecture are there, its packages of other versions are removed from the folder,
# whoever wrote them: what is there afterwards is what an installation by a pattern takes.
#
#   packaging/packages.sh VERSION [FOLDER [ARCHITECTURE…]]
set -eu
cd "$(dirname "$0")/.."

if [ $# -lt 1 ]; then
	echo "usage: packaging/packages.sh VERSION [FOLDER [ARCHITECTURE…]]" >&2
	exit 2
fi
version=$1
out=${2:-out/packages}
shift
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- amd64 arm64

: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH
# Package managers compare versions that begin with a number: what is no release is older than every release, and newer than what
# was committed before it.
number=${version#v}
case $number in
[0-9]*.[0-9]*.[0-9]*) ;;
*) number=0.0.0~snapshot$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(printf %s "$number" | tr -c 'A-Za-z0-9.\n' .) ;;
esac

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

go run -trimpath ./packaging/manual -out "$work/manual" -version "$number"
[ -n "${NFPM:-}" ] || {
	NFPM=$work/nfpm
	(cd packaging/nfpm && go build -trimpath -o "$NFPM" github.com/goreleaser/nfpm/v2/cmd/nfpm)
}
umask 022
for arch; do
	programs=${CLAWJAIL_PROGRAMS:-$work/programs-$arch}
	[ -n "${CLAWJAIL_PROGRAMS:-}" ] || {
		mkdir -p "$programs"
		CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$programs/" ./cmd/...
	}
	stage=$work/$arch
	DESTDIR=$stage PREFIX=/usr PROGRAMS=$programs MANUAL=$work/manual CONFIG=no sh packaging/stage.sh install
	find "$stage/usr/share/man" -name '*.1' -exec gzip -9n {} +
	mkdir -p "$stage/usr/share/doc/clawjail"
	cp packaging/nfpm/copyright "$stage/usr/share/doc/clawjail/copyright"
	mkdir "$work/$arch-packages"
	find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	for kind in deb rpm; do
		sed -e "s|@VERSION@|$number|" -e "s|@ARCH@|$arch|" -e "s|@STAGE@|$stage|" \
			-e "s|@DATE@|$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)|" packaging/nfpm/nfpm.yml >"$work/nfpm.yml"
		"$NFPM" package --config "$work/nfpm.yml" --packager $kind --target "$work/$arch-packages/"
	done
	case $arch in
	amd64) of_rpm=x86_64 ;;
	arm64) of_rpm=aarch64 ;;
	*) of_rpm=$arch ;;
	esac
	new=$(ls "$work/$arch-packages")
	mv "$work/$arch-packages"/* "$out/"
	for package in "$out"/clawjail_*_"$arch".deb "$out"/clawjail-*."$of_rpm".rpm; do
		printf '%s\n' "$new" | grep -qxF "${package##*/}" || rm -f "$package"
	done
done

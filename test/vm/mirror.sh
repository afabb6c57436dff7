#!/bin/sh
# Makes the part of Debian's archive that templates of an architecture are built from, with the archive's own signed lists:
# FOLDER/debian, FOLDER/debian-security, and the packages of both in FOLDER/pool.
#
#   test/vm/mirror.sh SUITE ARCHITECTURE FOLDER PACKAGE…
set -eu

suite=$1 arch=$2 out=$3
shift 3
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
archive=http://deb.debian.org

mkdir -p "$out/pool/partial" "$work/lists/partial" "$work/parts"
debootstrap --download-only --arch="$arch" --variant=minbase --cache-dir="$out/pool" "$suite" "$work/root" "$archive/debian"

cat >"$work/apt.conf" <<CONF
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "$work/parts";
Dir::Etc::Parts "$work/parts";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work";
Dir::Cache::Archives "$out/pool/";
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
export APT_CONFIG="$work/apt.conf" DEBIAN_FRONTEND=noninteractive
: >"$work/status"
for from in "debian $suite" "debian $suite-updates" "debian-security $suite-security"; do
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive/$from main"
done >"$work/sources.list"
apt-get update -q
names=$(find "$out/pool" -name '*.deb' -exec basename {} \; | sed 's/_.*//' | sort -u)
# shellcheck disable=SC2086 # names of packages have no spaces
apt-get install -q -y --download-only $names "$@"
rm -rf "$out/pool/partial" "$out/pool/lock"
# Lists name files without the epoch of their version.
find "$out/pool" -name '*%3a*' | while read -r deb; do
	mv "$deb" "$(echo "$deb" | sed 's/_[0-9]*%3a/_/')"
done

for from in "debian $suite" "debian $suite-updates" "debian-security $suite-security"; do
	dists=${from% *}/dists/${from#* }
	lists=main/binary-$arch
	mkdir -p "$out/$dists/$lists/by-hash/SHA256"
	files="InRelease $lists/Packages.xz"
	# debootstrap reads this one where there is no xz.
	[ "$from" != "debian $suite" ] || files="$files $lists/Packages.gz"
	for file in $files; do
		/usr/lib/apt/apt-helper -q download-file "$archive/$dists/$file" "$out/$dists/$file"
	done
	for file in "$out/$dists/$lists"/Packages.*; do
		ln -s "../../${file##*/}" "$out/$dists/$lists/by-hash/SHA256/$(sha256sum "$file" | cut -d ' ' -f 1)"
	done
done

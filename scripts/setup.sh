#!/bin/sh
# Installs what clawjail needs on Debian and Ubuntu; elsewhere it lists what is missing and ends with 1.
#
#   scripts/setup.sh build  what builds it: Go, and on Debian and Ubuntu git and certificates
#   scripts/setup.sh run    what clawjail itself needs, and what builds it
#   scripts/setup.sh test   that, and what its tests and benchmarks need
#   scripts/setup.sh vm     that, and what guests in an emulator need
#   scripts/setup.sh k8s    what a cluster of the tests needs, without that of the other tests
#
# It may be run any number of times: when everything is there it only looks, which takes a moment. What is there
# already is kept, from wherever it came: a thing is looked for by its command and not by its package. Services that
# come with a package are not started.
set -eu

# What apt and others say is read here, so they say it in English.
export LC_ALL=C
# The administrator's programs are not in everyone's PATH, and neither is Go's usual place.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"
export PATH
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/root.sh
. "$here/scripts/root.sh"

# One line each: command or absolute path, Debian package, what it is for. A package with a ? is left out where the
# distribution does not have it.
build_needs='
git git                        says which version is built
/etc/ssl/certs/ca-certificates.crt ca-certificates  trusts public servers
'
run_needs="$build_needs"'
make make                      builds
runc runc                      starts jails
debootstrap debootstrap        builds templates
/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring  checks the packages of templates
nft nftables                   shows the firewall
ip iproute2                    shows the network
certutil libnss3-tools         lets browsers trust extra certificates
btrfs btrfs-progs              clones on btrfs
mkfs.ext4 e2fsprogs            makes loop images
ps procps                      shows processes
'
test_needs='
crun crun                      the second runtime
jq jq                          reads JSON in scripts
curl curl                      a client of the gateway
python3 python3                another one
dockerd docker.io              the driver of containers, and the peer of the benchmarks
/usr/lib/postgresql postgresql  the second database of the tests
zfs zfs-fuse?                  clones on ZFS, in the tests
nginx nginx-light               a proxy in front, for the tests
caddy caddy?                    another one
docker docker-cli?             the same, where it is a package of its own
docker-compose docker-compose?  reads the files that agents are written to
docker-registry docker-registry?  serves images to the tests
node nodejs                    installs the clients of the tests
npm npm                        the same
rpm rpm                        looks into our packages
man man-db                     renders our manual pages
zsh zsh                        completes
fish fish                      the same
shellcheck shellcheck          reads our scripts
apparmor_parser apparmor       reads the profiles of jails
chromium chromium?             the browser tests
chromium-headless-shell chromium-headless-shell?  the browser tests
Xvfb xvfb                      a display without a screen, for windows in the tests
xwininfo x11-utils             lists the windows of a display
'
vm_needs='
qemu-system-x86_64 qemu-system-x86  runs the guests of the tests
qemu-img qemu-utils             makes their disks
depmod kmod                    lists the modules of their kernels
qemu-system-aarch64 qemu-system-arm  runs guests for arm64
'
k8s_needs='
/usr/lib/cni/bridge containernetworking-plugins  the network of pods
/bin/busybox busybox-static    what is in the pods of the tests
ipset ipset                    what enforces policies keeps addresses with it
/usr/lib/postgresql postgresql  the database of several control planes
node nodejs                    installs the clients of the tests
npm npm                        the same
'

die() {
	echo "error: $1" >&2
	[ -z "${2:-}" ] || echo "hint: $2" >&2
	exit 1
}

is_there() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null 2>&1 ;;
	esac
}

# missing prints the lines of the table whose thing is not there.
missing() {
	printf '%s\n' "$1" | while read -r thing package purpose; do
		[ -z "$thing" ] || is_there "$thing" || echo "$thing $package $purpose"
	done
}

# --- Go ---------------------------------------------------------------------------------------------------------

go_wanted=$(sed -n 's/^go //p' "$here/go.mod")

# at_least A B: version A is B or newer.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# go_ready: the Go that is installed is new enough, or fetches a newer one by itself, as it does since 1.21.
go_ready() {
	command -v go >/dev/null 2>&1 || return 1
	version=$(GOTOOLCHAIN=local go version 2>/dev/null | sed -n 's/^go version go\([0-9.]*\).*/\1/p')
	[ -n "$version" ] || return 1
	at_least "$version" "$go_wanted" && return 0
	at_least "$version" 1.21 || return 1
	echo "Go $version fetches Go $go_wanted"
	(cd "$here" && GOTOOLCHAIN=auto go version >/dev/null)
}

go_help() {
	die "Go $go_wanted or newer is needed${version:+, and this is Go $version}" \
		"install it from https://go.dev/dl/ into /usr/local/go, and run this again"
}

ensure_go() {
	version=
	go_ready && return 0
	if [ "$distribution" = debian ] && ! command -v go >/dev/null 2>&1; then
		update_lists golang-go
		candidate=$(apt-cache policy golang-go 2>/dev/null | sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}\([0-9.]*\).*/\2/p')
		if [ -n "$candidate" ] && at_least "$candidate" 1.21; then
			apt_install golang-go
		else
			install_backported_go
		fi
		go_ready && return 0
	fi
	go_help
}

# install_backported_go: a stable Debian's own Go may be too old to fetch a newer one, and its backports have one that
# can. Their list is read for this call alone; the machine's sources stay as they are.
install_backported_go() {
	# shellcheck disable=SC1091 # it is a file of the system
	codename=$(. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}") || return 0
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
		awk -v c="$codename" '$2 == c && $3 == "main" {print $1; exit}')
	[ -n "$codename" ] && [ -n "$mirror" ] || return 0
	work=$(mktemp -d)
	chmod 755 "$work"
	mkdir "$work/lists"
	[ ! -r /etc/apt/sources.list ] || cat /etc/apt/sources.list >"$work/list"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $codename-backports main" >>"$work/list"
	set -- -o "Dir::Etc::SourceList=$work/list" -o "Dir::State::Lists=$work/lists"
	if as_root apt-get update -q "$@"; then
		apt_install "$@" -t "$codename-backports" golang-go
	fi
	as_root rm -rf "$work"
}

# --- packages ---------------------------------------------------------------------------------------------------

distribution=other
# shellcheck disable=SC1091 # it is a file of the system
if [ -r /etc/os-release ] && (. /etc/os-release && case " ${ID:-} ${ID_LIKE:-} " in *" debian "* | *" ubuntu "*) true ;; *) false ;; esac) &&
	command -v apt-get >/dev/null 2>&1; then
	distribution=debian
fi

policy=/usr/sbin/policy-rc.d
saved=/usr/sbin/policy-rc.d.before-clawjail
mark='written by clawjail, scripts/setup.sh'

# Packages start their services. Those that do not run now stay as they are: policy-rc.d (see invoke-rc.d(8)) answers
# 101, "forbidden", for them, and for all others what it answered before.
hold_services() {
	release_services # what an interrupted run left
	held=
	for name in docker containerd docker-registry postgresql nginx caddy zfs-fuse; do
		pgrep -x "$name" >/dev/null 2>&1 || pgrep -x "${name}d" >/dev/null 2>&1 || pgrep -x "${name%ql}" >/dev/null 2>&1 || held="$held $name"
	done
	[ ! -e "$policy" ] || as_root mv "$policy" "$saved"
	as_root tee "$policy" >/dev/null <<POLICY
#!/bin/sh
# $mark; it removes this file when it is done.
for word; do
	case \$word in --*) continue ;; esac
	for name in$held; do
		case \$word in "\$name" | "\$name.service" | "\$name.socket") exit 101 ;; esac
	done
	break
done
[ ! -x $saved ] || exec $saved "\$@"
exit 0
POLICY
	as_root chmod 755 "$policy"
}

release_services() {
	if [ -e "$policy" ] && grep -q "$mark" "$policy"; then
		as_root rm -f "$policy"
	fi
	if [ -e "$saved" ] && [ ! -e "$policy" ]; then
		as_root mv "$saved" "$policy"
	fi
}

has_candidate() { apt-cache policy "$1" 2>/dev/null | grep -q '^  Candidate: [^(]'; }

# apt_install installs the named packages. It refuses to remove any: a machine with Docker's own packages keeps them.
apt_install() {
	trap release_services EXIT
	trap 'exit 130' INT TERM HUP
	hold_services
	fresh=
	for name in nginx caddy zfs-fuse; do
		command -v "$name" >/dev/null 2>&1 || fresh="$fresh $name"
	done
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends --no-remove "$@" ||
		die "apt-get could not install: $*" "the lines above say why"
	release_services
	# Only the tests want them: nothing of this is to listen after the next boot.
	for name in $fresh; do
		! command -v systemctl >/dev/null 2>&1 || as_root systemctl disable --quiet "$name.service" 2>/dev/null || :
	done
	trap - EXIT INT TERM HUP
}

# without_optional turns "name?" into name where there is such a package, and into nothing where there is none.
without_optional() {
	for package; do
		case $package in
		*\?) ! has_candidate "${package%\?}" || echo "${package%\?}" ;;
		*) echo "$package" ;;
		esac
	done
}

# needs_update: the package lists are older than a day, or do not know every package that is wanted. Old lists name
# versions that may be gone, and a browser without its latest fixes.
needs_update() {
	[ -n "$(find /var/lib/apt/lists -maxdepth 0 -mmin -1440 2>/dev/null)" ] || return 0
	for package; do
		has_candidate "${package%\?}" || return 0
	done
	return 1
}

# update_lists reads the lists anew, where they do not do for the packages.
update_lists() {
	if needs_update "$@"; then
		as_root apt-get update -q || die "apt-get update did not work" "is there a network?"
	fi
}

install_missing() {
	# shellcheck disable=SC2046 # package names have no spaces
	set -- $(printf '%s\n' "$1" | awk '{print $2}' | sort -u)
	update_lists "$@"
	# shellcheck disable=SC2046
	set -- $(without_optional "$@")
	[ $# -eq 0 ] || apt_install "$@"
}

# --- main -------------------------------------------------------------------------------------------------------

case ${1:-} in
build) # elsewhere they may have other paths, and a build does without
	needs=
	[ "$distribution" = other ] || needs=$build_needs
	;;
run) needs=$run_needs ;;
test) needs="$run_needs$test_needs" ;;
vm) needs="$run_needs$test_needs$vm_needs" ;;
k8s) needs="$run_needs$k8s_needs" ;;
*)
	echo "usage: scripts/setup.sh build|run|test|vm|k8s" >&2
	exit 2
	;;
esac

absent=$(missing "$needs")
if [ -n "$absent" ]; then
	if [ "$distribution" = other ]; then
		echo "This is not Debian or Ubuntu, so nothing was installed. Missing, with the name of Debian's package:" >&2
		printf '%s\n' "$absent" | while read -r thing package purpose; do
			printf '  %-26s %-26s %s\n' "$thing" "${package%\?}" "$purpose" >&2
		done
		die "some of what clawjail needs is missing" "install it with this system's package manager, and run this again"
	fi
	install_missing "$absent"
	absent=$(missing "$needs")
	printf '%s\n' "$absent" | while read -r thing package purpose; do
		[ -z "$thing" ] || echo "note: this distribution has no package for $thing ($purpose); what needs it is skipped" >&2
	done
	if printf '%s\n' "$absent" | awk 'NF && $2 !~ /\?$/ {found = 1} END {exit !found}'; then
		die "some of what clawjail needs is still missing" "the lines above say what"
	fi
fi
ensure_go
case $1 in
test | vm | k8s) "$here/scripts/clients.sh" ;;
esac

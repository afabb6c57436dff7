#!/bin/sh
# Makes a Debian guest: its disk root.img, its kernel vmlinuz, and in debs the packages that clawjail's own package asks for,
# with all that those ask for. It needs root and the distribution's mirror. KERNELS is the suite that the kernel is from.
#
#   test/vm/image.sh SUITE KERNELS ARCHITECTURE FOLDER PACKAGE…
set -eu

suite=$1 kernels=$2 arch=$3 out=$4
shift 4
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
root=$work/root
mirror=http://deb.debian.org/debian

# Programs of another architecture are started in the guest only: then its disk has a /second-stage, which is the first
# program that it is to be started with, once.
foreign=
[ "$arch" = "$(dpkg --print-architecture)" ] || foreign=--foreign
debootstrap ${foreign:+"$foreign"} --arch="$arch" --variant=minbase --include=apparmor,dbus,kmod,netbase,systemd-sysv,udev \
	"$suite" "$root" "$mirror"

# This host's apt, of whose configuration nothing counts, works for the guest, whose programs it need not be able to run.
cat >"$work/apt.conf" <<CONF
Dir "$root";
Dir::State::Status "$work/status";
Dir::Cache::Archives "$out/debs/";
Dir::Bin::Methods "/usr/lib/apt/methods";
Acquire::Languages "none";
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
APT::Default-Release "$suite";
CONF
export APT_CONFIG="$work/apt.conf" DEBIAN_FRONTEND=noninteractive
mkdir -p "$root/var/lib/apt/lists/partial" "$out/debs/partial"
if [ -n "$foreign" ]; then : >"$work/status"; else cp "$root/var/lib/dpkg/status" "$work/status"; fi
for from in $(printf '%s\n' "$suite" "$kernels" | sort -u); do
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $from main"
done >"$root/etc/apt/sources.list"
apt-get update -q

# The cloud kernel has NVMe and ext4 built in, so it needs no first file system in memory. Only its files are wanted.
kernel=$(apt-cache -o APT::Default-Release="$kernels" depends --important "linux-image-cloud-$arch" |
	sed -n 's/^ *Depends: linux-image-\([0-9].*\)/\1/p' | head -n 1)
mkdir "$work/kernel"
# Of newer kernels, parts are packages of their own.
for package in "linux-image-$kernel" $(for part in base binary modules; do apt-cache pkgnames "linux-$part-$kernel"; done); do
	(cd "$work/kernel" && apt-get download -q "$package")
done
for deb in "$work"/kernel/*.deb; do
	dpkg -x "$deb" "$work/kernel"
done
find "$work/kernel" -type f -name 'vmlinuz*' -exec mv {} "$out/vmlinuz" \;
mkdir -p "$root/usr/lib/modules"
find "$work/kernel" -type d -path "*/lib/modules/$kernel" -exec cp -a {} "$root/usr/lib/modules/" \;
if ! [ -f "$out/vmlinuz" ] || ! [ -d "$root/usr/lib/modules/$kernel" ]; then
	echo "the packages of the kernel $kernel are not as they were" >&2
	exit 1
fi
depmod -b "$root" "$kernel"

apt-get install -q -y --download-only --no-install-recommends "$@"
rm -rf "$out/debs/partial" "$out/debs/lock"

# From here on it knows the disk of the test alone, and no network. A second stage reads the lists once more.
[ -n "$foreign" ] || rm -rf "$root"/var/lib/apt/lists/*
rm -rf "$root"/var/cache/apt/*.bin "$root/etc/resolv.conf"
sources='deb [trusted=yes] file:/payload/debs ./'
echo "$sources" >"$root/etc/apt/sources.list"
echo guest >"$root/etc/hostname"
echo '127.0.0.1 localhost guest' >"$root/etc/hosts"
: >"$root/etc/machine-id"
mkdir -p "$root/payload" "$root/var/lib/clawjail/templates"
cat >"$root/etc/fstab" <<FSTAB
LABEL=payload /payload ext4 ro,nofail 0 0
LABEL=templates /var/lib/clawjail/templates ext4 defaults,nofail 0 0
FSTAB
units=$root/etc/systemd/system
mkdir -p "$units/multi-user.target.wants"
cat >"$units/test-agent.service" <<UNIT
[Unit]
Description=does what a test asks for
RequiresMountsFor=/payload

[Service]
ExecStart=/payload/agent
Restart=always
UNIT
ln -s ../test-agent.service "$units/multi-user.target.wants/"
for unit in getty@tty1.service serial-getty@ttyS0.service serial-getty@ttyAMA0.service apt-daily.timer apt-daily-upgrade.timer \
	e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer; do
	ln -sf /dev/null "$units/$unit"
done
# An emulated machine on a busy host takes its time.
mkdir -p "$root/etc/systemd/system.conf.d"
cat >"$root/etc/systemd/system.conf.d/slow.conf" <<CONF
[Manager]
DefaultDeviceTimeoutSec=10min
DefaultTimeoutStartSec=10min
CONF
# A power cut must not lose what the test wants to read afterwards.
mkdir -p "$root/var/log/journal"

if [ -n "$foreign" ]; then
	cat >"$root/second-stage" <<STAGE
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
if /debootstrap/debootstrap --second-stage; then
	echo "$sources" >/etc/apt/sources.list
	: >/etc/machine-id
	rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /second-stage
else
	tail -n 30 /debootstrap/debootstrap.log
fi
sync
mount -o remount,ro /
mountpoint -q /proc || mount -t proc proc /proc
echo o >/proc/sysrq-trigger
sleep 60
STAGE
	chmod 755 "$root/second-stage"
fi

truncate -s 6G "$work/root.img"
mke2fs -q -t ext4 -L root -d "$root" "$work/root.img"
mv "$work/root.img" "$out/root.img"

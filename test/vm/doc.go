// Package vm tries clawjail on an ordinary machine: a Debian guest in QEMU, with systemd, cgroup v2 and AppArmor, in
// which nothing is installed but what Debian itself needs. The package is installed there as users do it, and the guest
// is started anew, and its power cut.
//
// It promises: a guest has no network but its own; nothing of it is left on the host but images, which are made
// once and kept in /var/cache/clawjail-test by the digest of what they are made of.
package vm

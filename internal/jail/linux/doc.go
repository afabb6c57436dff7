// Package linux supplies the five parts of a jail on Linux: storage, network, firewall, limiter and runtime.
//
// The parts follow the contracts of package jail, which owns the order of steps, the journal and the reaper. Here is
// only what needs the kernel:
//
//   - Storage clones a template: overlayfs over the template's folder, a btrfs snapshot where the data directory is on
//     btrfs, or a ZFS dataset where one is named.
//   - Network and Firewall give a jail one address and open the gateway to it, and nothing else.
//   - Limiter bounds memory, processor time and tasks by control groups of version 1 or 2, before anything runs.
//   - Runtime has an OCI runtime (crun, runc or runsc) start the program, and ends it by control group and process
//     descriptor, never by a name.
//
// The package promises: everything made on the host carries the installation's id; no path that a caller names is ever
// followed, because all of them are resolved beneath root-owned folders by descriptor and without symbolic links; what
// is removed is verified by looking at the host; and what the kernel says of a started jail is read back by Observe
// without asking the jail.
//
// The oldest kernel is 5.14. Of control groups version 2 the parts that need the memory, cpu and pids controllers are
// tested against a tree of files that behaves like the kernel's, and group kill against the kernel itself; runsc is
// accepted, and has not been run.
package linux

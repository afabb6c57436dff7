//go:build linux

package hosttest

// behaviour is something that the simulator does as a FreeBSD host does, and where that is from.
type behaviour struct {
	Name   string
	Source string
	// Kind is how sure it is: "source" was read in FreeBSD's or OpenZFS's source or manual, "measured" was captured by others
	// on a real host, "inferred" is neither. None was run by us.
	Kind string
}

// behaviours lists them, for a reader with a FreeBSD host; each is shown by a test of its name.
func behaviours() []behaviour {
	satl := "github.com/fredericalix/satl @910f4525 (FreeBSD 15.1), "
	return []behaviour{
		{"a missing dataset", satl + "crates/satl-storage/tests/fixtures/zfs_list_name_missing.txt", "measured"},
		{"a snapshot with clones stays", "openzfs/zfs cmd/zfs/zfs_main.c zfs_do_destroy; texts in copies of libzfs", "source"},
		{"a dataset with children stays", "openzfs/zfs cmd/zfs/zfs_main.c destroy_check_dependent", "source"},
		{"a dataset name has 255 characters", "openzfs/zfs ZFS_MAX_DATASET_NAME_LEN", "source"},
		{"a dataset in use is busy", satl + "docs/jail-teardown.md", "measured"},
		{"unmounting by force strands what is below", satl + "tests/cluster/README.md", "measured"},
		{"a dying jail holds its dataset", satl + "docs/jail-teardown.md", "measured"},
		{"limits outlive jails", satl + "crates/satl-agent/src/rctl.rs; freebsd-src usr.bin/rctl/rctl.c @027f6b4", "measured"},
		{"memory is denied to nobody", "freebsd-src sys/kern/kern_rctl.c rctl_rule_add; " + satl + "crates/satl-agent/src/rctl.rs", "measured"},
		{"racct is off", "freebsd-src usr.bin/rctl/rctl.c @027f6b4 enosys", "source"},
		{"an interface name has 15 characters", satl + "crates/satl-net/src/ifconfig.rs", "measured"},
		{"a bridge whose name is taken is left behind", satl + "crates/satl-net/tests/fixtures/ifconfig_bridge_create_conflict_stderr.txt", "measured"},
		{"both halves of a pair go together", satl + "crates/satl-net/src/ifconfig.rs", "measured"},
		{"an interface returns with its description", satl + "crates/satl-net/src/ifconfig.rs", "measured"},
		{"adding to a missing table makes one that filters nothing", "freebsd-src sbin/pfctl/pfctl_table.c @041ce1d CREATE_TABLE", "source"},
		{"a missing table", "freebsd-src tests/sys/netpfil/pf/table.sh", "source"},
		{"testing a table ends with 2", "freebsd-src sbin/pfctl/pfctl_table.c @041ce1d; that it is the exit status is inferred", "inferred"},
		{"booleans of jls are names", "freebsd-src usr.sbin/jls/jls.c @01021fd print_jail", "source"},
		{"an unknown jail", "freebsd-src usr.sbin/jail/jail.c @0906e40 jail_quoted_warnx; jexec: seen in reports", "source"},
		{"the options of a tmpfs are not listed", satl + "crates/satl-runtime/tests/fixtures/mount_p_host.txt", "measured"},
		{"what is not understood is an error", "usage() of each command in freebsd-src; zfs ends with 2", "source"},
	}
}

// Package hosttest is a FreeBSD host that exists only in a test: its commands zfs, jail, jls, jexec, ifconfig, pfctl, rctl, mount,
// umount, mount_nullfs, ps, sysctl, kldstat and mdo as one program with one state.
//
//	func TestMain(m *testing.M) { hosttest.Main(); os.Exit(m.Run()) }
//
//	host := hosttest.New(t)
//	run := hostcmd.Runner{Dir: host.Commands()}
//
// Each command is a link to the test's own binary, which becomes the command when Main finds itself called by such a link. The
// commands are real processes that may run at the same time; their state is one file under a lock. Their output and how they
// end are copied from the sources that Behaviours lists, and an argument that is not modelled is an error: where the driver and
// the simulator disagree one of them misread a source. It shares no code with the driver.
//
// Programs in a jail are real Linux processes with real stdio, signals and children, in namespaces of their own and with the
// jail's folder as their root. File systems are real mounts below Root: a dataset is a bind mount, a clone an overlay, nullfs a
// bind, devfs a tmpfs with four devices. Networks are tables only, but for the loopback of each jail. Limits are real where the
// machine has control groups.
//
// Scenarios make a host misbehave in the ways that were reported of real ones; see Scenario. A transcript of a real host is
// compared with the simulated one by Replay; its format is that of package transcript.
//
// No FreeBSD has run any of this: it is as right as its sources. Behaviours says which of them are source code, which were
// measured by others on a real host, and which are inferred. It needs Linux and root.
package hosttest

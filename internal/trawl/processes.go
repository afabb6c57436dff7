package trawl

// ProcessOptions say what of processes is searched.
type ProcessOptions struct {
	// PIDs says which processes; nil is AllProcesses. To leave some out, filter these.
	PIDs func() ([]int, error)
	// DeletedFiles also searches files that a process has open and that have no name any more, memory files included.
	DeletedFiles bool
}

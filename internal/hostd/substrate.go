package hostd

// TreeMaker makes and removes folders that can be cloned, and mounts those that have to be.
type TreeMaker interface {
	Make(path string) error
	Remove(path string) error
	Settle(path string) error
}

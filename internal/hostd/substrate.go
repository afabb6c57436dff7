package hostd

// TreeMaker makes and removes folders that can be cloned.
type TreeMaker interface {
	Make(path string) error
	Remove(path string) error
}

//go:build !linux

package doctor

import "fmt"

// trials are for Linux only.
func trials(Options) Trials { return Trials{} }

func space(path string) (Space, error) {
	return Space{}, fmt.Errorf("how much is free at %s is not known on this system", path)
}

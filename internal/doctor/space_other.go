//go:build !linux && !freebsd

package doctor

import "fmt"

func space(path string) (Space, error) {
	return Space{}, fmt.Errorf("how much is free at %s is not known on this system", path)
}

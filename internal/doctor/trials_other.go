//go:build !linux && !freebsd

package doctor

// trials are for Linux and FreeBSD only.
func trials(Options) Trials { return Trials{} }

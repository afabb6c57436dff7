//go:build !linux

package ringlog

// transfer moves bytes from a pipe to the end of the newest segment.
func (l *Log) transfer(fd, most int) (int64, error) { return l.copyOver(fd, most) }

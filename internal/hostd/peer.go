package hostd

import "log/slog"

// peer is the user and process that made a connection, as the kernel tells them. They are those of the moment of the connect.
type peer struct {
	uid uint32
	pid int // 0 where it is not known
}

// LogValue implements slog.LogValuer.
func (p peer) LogValue() slog.Value {
	return slog.GroupValue(slog.Uint64("uid", uint64(p.uid)), slog.Int("pid", p.pid))
}

package postgres

import (
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// silence is how long a server may say nothing at all, not even that it has received something, before its connection is
	// given up. Without it a machine that has lost its power holds connections for a quarter of an hour.
	silence = 20 * time.Second
	// pingTime is how long a connection that was idle may take to show that it is still good.
	pingTime = 5 * time.Second
)

// notice has a pool notice servers that go away without a word, so that what waits for one goes on with the next, or fails.
func notice(config *pgxpool.Config) {
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 4, Interval: silence / 4, Count: 3},
		Control:         giveUp,
	}
	config.ConnConfig.DialFunc = dialer.DialContext
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = silence
	}
	if config.PingTimeout == 0 {
		config.PingTimeout = pingTime
	}
}

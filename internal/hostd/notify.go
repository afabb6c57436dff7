package hostd

import (
	"errors"
	"fmt"
	"net"
)

// Notifier returns what tells a service manager about READY=1 and STOPPING=1 by the protocol of sd_notify(3): one
// datagram to the socket that NOTIFY_SOCKET names. An empty name is no service manager, and nothing to tell.
func Notifier(socket string) func(state string) error {
	return func(state string) error {
		if socket == "" {
			return nil
		}
		// A leading @ is an abstract socket, which package net understands.
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: socket})
		if err != nil {
			return fmt.Errorf("connect to the service manager: %w", err)
		}
		_, err = conn.Write([]byte(state))
		return errors.Join(err, conn.Close())
	}
}

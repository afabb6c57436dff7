//go:build linux

package main

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makeLink makes a network interface, a bridge.
func makeLink([]string) (answer, error) {
	return answer{}, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}})
}

// setOption sets an option of a socket to 1: the family of a new TCP socket, the level, the option.
func setOption(args []string) (answer, error) {
	fd, err := unix.Socket(number(args[0]), unix.SOCK_STREAM, 0)
	if err != nil {
		return answer{}, err
	}
	return answer{}, errors.Join(unix.SetsockoptInt(fd, number(args[1]), number(args[2]), 1), unix.Close(fd))
}

// dial connects to "network address milliseconds", sends the optional fourth argument and reports what comes back, and
// after how many milliseconds.
func dial(args []string) (answer, error) {
	began := time.Now()
	limit := time.Duration(number(args[2])) * time.Millisecond
	took := func(a answer) answer { a.Number = time.Since(began).Milliseconds(); return a }
	c, err := net.DialTimeout(args[0], args[1], limit)
	if err != nil {
		return took(answer{}), err
	}
	defer func() { _ = c.Close() }()
	if len(args) < 4 {
		return took(answer{}), nil
	}
	if err := c.SetDeadline(began.Add(limit)); err != nil {
		return took(answer{}), err
	}
	if _, err := c.Write([]byte(args[3])); err != nil {
		return took(answer{}), err
	}
	var buf [4096]byte
	n, err := c.Read(buf[:])
	return took(answer{Text: string(buf[:n])}), err
}

// listen opens a TCP listener at an address and leaves it open; it reports the address.
func listen(args []string) (answer, error) {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return answer{}, err
	}
	go func() { // for as long as the process is there
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n")) // the caller sees what arrives
			_ = c.Close()
		}
	}()
	return answer{Text: l.Addr().String()}, nil
}

// accept waits for one connection to a local socket path and reports that it came.
func accept(args []string) (answer, error) {
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return answer{}, err
	}
	c, err := l.Accept()
	if err == nil {
		err = c.Close()
	}
	return answer{}, errors.Join(err, l.Close(), ignoreMissing(os.Remove(args[0])))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

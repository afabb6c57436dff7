//go:build linux

package pid1

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxProbes bounds what is tried at once.
const maxProbes = 64

// reached tries all probes at the same time, and names those that reached something.
func reached(ctx context.Context, probes []shim.Probe) ([]string, error) {
	if len(probes) > maxProbes {
		return nil, problem.New(problem.TooLarge, "", "%d probes are more than %d", len(probes), maxProbes)
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	did := make([]bool, len(probes))
	errs := make([]error, len(probes))
	var all sync.WaitGroup
	for n, p := range probes {
		all.Go(func() { did[n], errs[n] = try(ctx, p) })
	}
	all.Wait()
	var out []string
	for n, p := range probes {
		if errs[n] != nil {
			return nil, errs[n]
		}
		if did[n] {
			out = append(out, p.Name)
		}
	}
	return out, nil
}

// try says whether something is reached. It is no error when it is not, for whatever reason.
func try(ctx context.Context, p shim.Probe) (bool, error) {
	var d net.Dialer
	switch p.Network {
	case "tcp":
		conn, err := d.DialContext(ctx, "tcp", p.Address.String())
		if err != nil {
			return false, nil
		}
		_ = conn.Close()
		return true, nil
	case "dns":
		conn, err := d.DialContext(ctx, "udp", p.Address.String())
		if err != nil {
			return false, nil
		}
		defer func() { _ = conn.Close() }()
		end, _ := ctx.Deadline()
		if err := conn.SetDeadline(end); err != nil {
			return false, err
		}
		for time.Now().Before(end) { // what is lost once may arrive the next time
			if _, err := conn.Write([]byte(question)); err != nil {
				return false, nil
			}
			_ = conn.SetReadDeadline(time.Now().Add(probeLimit / 4))
			if n, err := conn.Read(make([]byte, 512)); err == nil && n > 0 {
				return true, nil
			}
		}
		return false, nil
	}
	return false, problem.New(problem.Unsupported, "a probe is by tcp or dns", "a probe by %q is not known", p.Network)
}

// question asks a name server for the address of localhost (RFC 1035, 4.1): a header that counts one question, which recursion is wanted for, the
// name, type A and class IN.
const question = "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x09localhost\x00\x00\x01\x00\x01"

// addresses are those of the interfaces but the loopback. A browser's seccomp filter allows no netlink, by which package net asks for them.
func addresses() ([]netip.Addr, error) {
	four, err := os.ReadFile("/proc/net/fib_trie")
	if err != nil {
		return nil, err
	}
	six, err := os.ReadFile("/proc/net/if_inet6")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // there may be no IPv6
		return nil, err
	}
	return parseAddresses(string(four), string(six))
}

// parseAddresses reads two files of proc. In the first, a tree of routes, local routes to one host are the machine's addresses.
func parseAddresses(four, six string) (out []netip.Addr, err error) {
	add := func(a netip.Addr) {
		if !a.IsLoopback() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	var last string
	for line := range strings.Lines(four) {
		line = strings.TrimSpace(line)
		if rest, leaf := strings.CutPrefix(line, "|-- "); leaf {
			last = rest
		}
		if line == "/32 host LOCAL" {
			a, err := netip.ParseAddr(last)
			if err != nil {
				return nil, err
			}
			add(a)
		}
	}
	for line := range strings.Lines(six) {
		raw, err := hex.DecodeString(strings.Fields(line + " .")[0])
		a, ok := netip.AddrFromSlice(raw)
		if err != nil || !ok {
			return nil, fmt.Errorf("%q has no address", line)
		}
		add(a)
	}
	return out, nil
}

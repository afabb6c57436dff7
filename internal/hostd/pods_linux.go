package hostd

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

// addressLimit is how long it may take to find out which address of this machine reaches the API server.
const addressLimit = 10 * time.Second

// assemblePods makes the driver of jails that are pods.
func assemblePods(ctx context.Context, c config.Config, id jail.Installation, log *slog.Logger) (_ Parts, err error) {
	k := c.Kubernetes
	access, err := ClusterAccess(k)
	if err != nil {
		return Parts{}, err
	}
	server, err := serverAddress(ctx, access.Server)
	if err != nil {
		return Parts{}, err
	}
	address := k.Address
	if !address.IsValid() {
		if address, err = ownAddress(ctx, server); err != nil {
			return Parts{}, err
		}
	}
	key, err := podsKey(filepath.Join(c.DataDir, podsKeyName))
	if err != nil {
		return Parts{}, fmt.Errorf("read the key for pods: %w", err)
	}
	listen := func(port uint16) (net.Listener, error) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(address, port).String())
		if err != nil {
			return nil, problem.Wrap(err, problem.Conflict, "see what else listens there, and that kubernetes.address is one of this machine", "pods cannot be let in at %s", address)
		}
		return l, nil
	}
	listener, err := listen(k.Port)
	if err != nil {
		return Parts{}, err
	}
	// A port that pods could reach only if nothing enforced the policies of the network.
	closed, err := listen(0)
	if err != nil {
		return Parts{}, errors.Join(err, listener.Close())
	}
	go refuseAll(closed, log)
	api, err := kubernetes.NewAPI(access)
	if err != nil {
		return Parts{}, errors.Join(err, listener.Close(), closed.Close())
	}
	var driver *kubernetes.Driver
	return Parts{
		Parts: jail.Parts{Means: jail.Means{UserNamespaces: true}}, Journal: kubernetes.Unwritten{}, Gateway: address,
		Jails: func(ctx context.Context, o jail.Options) (Jails, error) {
			options := kubernetes.Options{
				API: api, Installation: id, Node: nodeOf(c, id), Namespace: k.Namespace, Images: k.Images, Account: k.Account,
				Gateway: listener.Addr().String(), Key: key, Warm: k.Warm, RuntimeClass: k.RuntimeClass,
				Folder: int64(k.Folder), StorageClass: k.StorageClass, SharedStorageClass: k.SharedStorageClass, Console: o.Console,
				Probes: probes(k, closed.Addr().String(), server), Grace: o.Grace, Journal: o.Journal, Barrier: o.Barrier, Log: log, Now: o.Now,
			}
			if k.Seccomp != config.SeccompDefault {
				options.Seccomp = k.Seccomp
			}
			d, err := kubernetes.New(ctx, options)
			if err != nil {
				return nil, err
			}
			driver = d
			go d.Serve(listener)
			return d, nil
		},
		Close: func(ctx context.Context) (err error) {
			if driver != nil { // its pods end with this process: their connections do
				err = driver.Leave(ctx)
			}
			api.Close()
			return errors.Join(err, listener.Close(), closed.Close())
		},
	}, nil
}

// ClusterAccess is how the API server is reached.
func ClusterAccess(k config.Kubernetes) (kubernetes.Access, error) {
	if k.Server == "" {
		return kubernetes.InCluster(os.Getenv)
	}
	return kubernetes.Access{Server: k.Server, Authority: k.Authority, Token: k.Token}, nil
}

// nodeOf is the name that this control plane has in the cluster.
func nodeOf(c config.Config, id jail.Installation) string { return cmp.Or(c.Node, string(id)) }

// leaveCluster has the cluster delete what an installation has made there, but for the volumes of agents.
func leaveCluster(ctx context.Context, c config.Config, id jail.Installation) error {
	access, err := ClusterAccess(c.Kubernetes)
	if err != nil {
		return err
	}
	api, err := kubernetes.NewAPI(access)
	if err != nil {
		return err
	}
	defer api.Close()
	return api.Leave(ctx, c.Kubernetes.Namespace, nodeOf(c, id))
}

// serverAddress is where the API server is.
func serverAddress(ctx context.Context, server string) (netip.AddrPort, error) {
	u, err := url.Parse(server)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	ctx, cancel := context.WithTimeout(ctx, addressLimit)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
	if err != nil {
		return netip.AddrPort{}, problem.Wrap(err, problem.UpstreamUnreachable, "correct kubernetes.server", "the address of the API server %s is not known", u.Hostname())
	}
	return netip.ParseAddrPort(net.JoinHostPort(all[0].Unmap().String(), port))
}

// ownAddress is the one of this machine with which it reaches the API server. No packet is sent.
func ownAddress(ctx context.Context, server netip.AddrPort) (netip.Addr, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", server.String())
	if err != nil {
		return netip.Addr{}, problem.Wrap(err, problem.UpstreamUnreachable, "set kubernetes.address", "there is no way to the API server at %s", server)
	}
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return at.Addr(), errors.Join(err, conn.Close())
}

// podsKey is what pods know this control plane by. It is made once.
func podsKey(path string) (ed25519.PrivateKey, error) {
	seed, _, err := keyfile.Read(path, ed25519.SeedSize)
	if errors.Is(err, fs.ErrNotExist) {
		seed = make([]byte, ed25519.SeedSize)
		rand.Read(seed) // never fails, see its documentation
		err = keyfile.Write(path, 0o600, seed, os.Link)
	}
	if err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize {
		return nil, problem.New(problem.BadConfig, "remove it: another is made, and pods that wait are made anew", "%s is no key", path)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// refuseAll answers nothing, until the listener is closed.
func refuseAll(l net.Listener, log *slog.Logger) {
	for {
		conn, err := wake.Accept(l.Accept, nil, func(err error) { log.Warn("accept a connection that is refused; it is tried again", "error", err) })
		if err != nil {
			return
		}
		_ = conn.Close() // nothing was said
	}
}

// resolvConf says which name servers this machine asks (resolv.conf(5)).
const resolvConf = "/etc/resolv.conf"

// probes are what no pod may reach.
func probes(k config.Kubernetes, closed string, server netip.AddrPort) []shim.Probe {
	all := []shim.Probe{{Name: "another port of the control plane", Network: "tcp", Address: netip.MustParseAddrPort(closed)},
		{Name: "the API server", Network: "tcp", Address: server}}
	text, _ := os.ReadFile(resolvConf) // a host without one asks no name server
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil && !a.IsLoopback() {
				all = append(all, shim.Probe{Name: "the name server " + a.String(), Network: "dns", Address: netip.AddrPortFrom(a, 53)})
			}
		}
	}
	for _, a := range k.Unreachable {
		network := "tcp"
		if a.Port() == 53 {
			network = "dns"
		}
		all = append(all, shim.Probe{Name: a.String(), Network: network, Address: a})
	}
	return all
}

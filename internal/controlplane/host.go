package controlplane

import (
	"context"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
)

const (
	// hostWait bounds the wait for the host daemon, which may be starting at the same moment, and for its bridge.
	hostWait = 10 * time.Second
	// tenantsLook is how often it is looked whether there are more or fewer tenants, and tenantsAgain how often the host daemon is
	// told although there are as many as before: it may be another one, or have bounds that are still to come down.
	tenantsLook, tenantsAgain = time.Second, 10 * time.Second
)

// holdHost holds a connection to the host daemon for as long as this process has jails.
func (p *plane) holdHost(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	p.host = hostd.NewClient(hostd.SocketPath(p.Config), p.Log)
	if err := p.host.Hold(ctx); err != nil {
		return fmt.Errorf("reach the host daemon: %w", err)
	}
	if p.info, err = p.host.Info(ctx); err != nil {
		p.host.Close()
		return fmt.Errorf("ask the host daemon what it is: %w", err)
	}
	return nil
}

// tellTenants tells the host daemon how many tenants there are, until the context ends.
func (p *plane) tellTenants(ctx context.Context) error {
	look := time.NewTicker(tenantsLook)
	defer look.Stop()
	told, rest := 0, time.Duration(0)
	for {
		if n := p.identity.Counted(); n != told || rest <= 0 {
			if _, err := p.host.Share(ctx, n); err == nil {
				told, rest = n, tenantsAgain
			} else if ctx.Err() == nil {
				p.Log.Debug("tell the host daemon how many tenants there are", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			rest -= tenantsLook
		}
	}
}

// memoryOfJails looks at the memory that jails have by their limits. While there is one tenant nothing of it is refused.
func (p *plane) memoryOfJails(ctx context.Context) func(quota.Holder) []quota.Amount {
	n := p.identity.Counted()
	declared, err := p.host.Share(ctx, n)
	if err != nil || n < 2 {
		return func(quota.Holder) []quota.Amount { return nil }
	}
	return declared.Held
}

// hostInfo asks the host daemon what it is.
func (p *plane) hostInfo(ctx context.Context) (api.HostInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	info, err := p.host.Info(ctx)
	return api.HostInfo{Installation: string(info.Installation), Subnet: info.Subnet.String(), Gateway: info.Gateway.String(), Jails: info.Jails}, err
}

// installed is the host daemon's list of templates as sessions see it.
type installed struct {
	host *hostd.Client
	pods bool // jails are pods, of images
}

// Template implements session.Templates.
func (i installed) Template(ctx context.Context, name string) (session.Template, error) {
	all, err := i.host.Templates(ctx)
	if err != nil {
		return session.Template{}, err
	}
	for _, t := range all {
		if t.Name != name {
			continue
		}
		out := session.Template{Digest: t.Digest, Programs: make(map[string]string, len(t.Programs))}
		for program, p := range t.Programs {
			out.Programs[program] = p.Path
		}
		return out, nil
	}
	hint := "build it: sudo clawjail template build " + name
	if i.pods {
		hint = "name its image in kubernetes.images of the configuration"
	}
	return session.Template{}, problem.New(problem.TemplateMissing, hint, "there is no template %s", name)
}

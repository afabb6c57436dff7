package config

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// decode takes every known key out of the file. A key that it cannot read keeps its default, so that Validate does not
// report it a second time.
func (c *Config) decode(m *yamldoc.Map) {
	m.Value("data_dir", text(&c.DataDir))
	m.Value("run_dir", text(&c.RunDir))
	m.Value("templates_dir", text(&c.TemplatesDir))
	m.Value("user", text(&c.User))
	m.Value("node", text(&c.Node))
	m.Value("database", func(v yamldoc.Value) error {
		var url string
		err := text(&url)(v)
		c.Database = DatabaseURL(url)
		return err
	})
	m.Value("listen", func(v yamldoc.Value) error { return parseInto(&c.Listen, v, parseListen) })
	m.Map("tls", func(m *yamldoc.Map) {
		m.Value("cert", text(&c.TLS.Cert))
		m.Value("key", text(&c.TLS.Key))
	})
	m.Values("behind_proxy", appendTo(&c.BehindProxy, parsePrefix))
	m.Value("public_url", text(&c.PublicURL))
	m.Value("subnet", func(v yamldoc.Value) error {
		if v.Text == "auto" {
			return nil
		}
		return parseInto(&c.Subnet, v, parsePrefix)
	})
	m.Value("uid_base", whole(&c.UIDBase, math.MaxUint32))
	m.Value("runtime", text(&c.Runtime))
	m.Value("storage", word(&c.Storage, StorageAuto, StorageOverlay, StorageBtrfs, StorageZFS))
	m.Value("zfs_dataset", text(&c.ZFSDataset))
	m.Value("apparmor", word(&c.AppArmor, AppArmorAuto, AppArmorRequired, AppArmorOff))
	m.Values("extra_ca", textList(&c.ExtraCA))
	m.Map("vault", func(m *yamldoc.Map) { m.Value("key_file", text(&c.Vault.KeyFile)) })
	m.Map("grants", func(m *yamldoc.Map) {
		m.Value("ttl", duration(&c.Grants.TTL))
		m.Value("max_ttl", duration(&c.Grants.MaxTTL))
	})
	m.Map("audit", func(m *yamldoc.Map) { m.Value("keep", duration(&c.Audit.Keep)) })
	m.Maps("logins", func(m *yamldoc.Map) {
		var l Login
		m.Value("domain", text(&l.Domain))
		m.Value("probe_url", text(&l.ProbeURL))
		m.Values("urls", func(v yamldoc.Value) error {
			l.URLs = append(l.URLs, "")
			return text(&l.URLs[len(l.URLs)-1])(v)
		})
		m.Value("selector", text(&l.Selector))
		c.Logins = append(c.Logins, l)
	})
	m.Map("gateway", c.Gateway.decode)
	m.Map("sessions", func(m *yamldoc.Map) {
		m.Value("max", whole(&c.Sessions.Max, math.MaxInt32))
		m.Value("ttl", duration(&c.Sessions.TTL))
		m.Value("max_ttl", duration(&c.Sessions.MaxTTL))
		m.Value("idle", duration(&c.Sessions.Idle))
		m.Value("wall_clock", duration(&c.Sessions.WallClock))
		m.Value("dialog_wait", duration(&c.Sessions.DialogWait))
	})
	m.Map("quotas", func(m *yamldoc.Map) {
		m.Value("tenant", percent(&c.Quotas.Tenant))
		m.Value("agent", percent(&c.Quotas.Agent))
		room := func(to *Bytes) func(yamldoc.Value) error {
			return func(v yamldoc.Value) error {
				if v.Text == "auto" {
					return nil
				}
				return parseInto(to, v, ParseBytes)
			}
		}
		m.Value("recordings", room(&c.Quotas.Recordings))
		m.Value("memory", room(&c.Quotas.Memory))
		m.Value("audit", room(&c.Quotas.Audit))
	})
	m.Map("warm_pool", func(m *yamldoc.Map) {
		m.Value("size", whole(&c.WarmPool.Size, math.MaxInt32))
		m.Value("max_age", duration(&c.WarmPool.MaxAge))
		m.Value("browser", word(&c.WarmPool.Browser, BrowserShell, BrowserFull))
	})
	m.Map("network_slots", func(m *yamldoc.Map) {
		m.Value("ready", whole(&c.NetworkSlots.Ready, math.MaxInt32))
	})
	m.Map("limits", c.Limits.decode)
	if m.Has("workspace_roots") {
		c.Agents.WorkspaceRoots = []string{} // an empty list is none, and not the default
	}
	m.Values("workspace_roots", textList(&c.Agents.WorkspaceRoots))
	m.Values("jail_roots", textList(&c.Agents.JailRoots))
	m.Value("allow_host_network", truth(&c.Agents.AllowHostNetwork))
	m.Map("agents", c.Agents.decode)
	m.Map("docker", func(m *yamldoc.Map) {
		m.Value("socket", text(&c.Docker.Socket))
		m.Value("subnet", func(v yamldoc.Value) error {
			if v.Text == "auto" {
				return nil
			}
			return parseInto(&c.Docker.Subnet, v, parsePrefix)
		})
		m.Value("image", text(&c.Docker.Image))
		m.Value("compose", truth(&c.Docker.Compose))
	})
	m.Map("mcp_servers", c.decodeServers)
	m.Map("browser", c.HostBrowser.decode)
	m.Map("console", func(m *yamldoc.Map) {
		m.Value("enabled", truth(&c.Console.Enabled))
		m.Value("accent", text(&c.Console.Accent))
		m.Value("idle", duration(&c.Console.Idle))
		m.Value("life", duration(&c.Console.Life))
	})
	m.Map("metrics", func(m *yamldoc.Map) { m.Value("open", truth(&c.Metrics.Open)) })
	m.Map("log", func(m *yamldoc.Map) {
		m.Value("level", word(&c.Log.Level, "debug", "info", "warn", "error"))
		m.Value("format", word(&c.Log.Format, "text", "json"))
	})
}

func (g *Gateway) decode(m *yamldoc.Map) {
	m.Value("port", whole(&g.Port, math.MaxUint16))
	m.Value("placement", word(&g.Placement, PlacementHost, PlacementContainer))
	m.Value("relay", func(v yamldoc.Value) error { return parseInto(&g.Relay, v, parseListen) })
	m.Value("relay_to", text(&g.RelayTo))
	m.Value("silence", duration(&g.Silence))
	m.Maps("private_destinations", func(m *yamldoc.Map) {
		var d PrivateDestination
		m.Value("host", text(&d.Host))
		m.Value("address", func(v yamldoc.Value) error { return parseInto(&d.Address, v, parseAddr) })
		m.Values("ports", func(v yamldoc.Value) error {
			d.Ports = append(d.Ports, 0)
			return whole(&d.Ports[len(d.Ports)-1], math.MaxUint16)(v)
		})
		g.PrivateDestinations = append(g.PrivateDestinations, d)
	})
}

func (b *HostBrowser) decode(m *yamldoc.Map) {
	m.Value("enabled", truth(&b.Enabled))
	m.Value("control_url", text(&b.ControlURL))
	m.Value("color", text(&b.Color))
	m.Value("headless", word(&b.Headless, HeadlessAuto, HeadlessYes, HeadlessNo))
	m.Value("attach_only", truth(&b.AttachOnly))
	m.Value("executable", textOrNone(&b.Executable))
	m.Value("listen", func(v yamldoc.Value) error { return parseInto(&b.Remote.Listen, v, ParseListen) })
	m.Map("tls", func(m *yamldoc.Map) {
		m.Value("cert", textOrNone(&b.Remote.TLS.Cert))
		m.Value("key", textOrNone(&b.Remote.TLS.Key))
	})
	m.Value("token", textOrNone(&b.Remote.Token))
}

func (a *Agents) decode(m *yamldoc.Map) {
	m.Value("driver", word(&a.Driver, AgentDriverAuto, AgentDriverLinux, AgentDriverDocker))
	m.Value("log", size(&a.Log))
	m.Map("limits", a.Limits.decode)
}

func (l *AgentLimits) decode(m *yamldoc.Map) {
	m.Value("memory", size(&l.Memory))
	m.Value("cpu", number(&l.CPU))
	m.Value("tasks", whole(&l.Tasks, math.MaxInt32))
	m.Value("tmp", size(&l.Tmp))
	m.Value("state", size(&l.State))
	m.Value("files", whole(&l.Files, math.MaxInt32))
}

func textList(into *[]string) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		*into = append(*into, "")
		return text(&(*into)[len(*into)-1])(v)
	}
}

func size(into *Bytes) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error { return parseInto(into, v, ParseBytes) }
}

func number(into *float64) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		n, err := v.Number()
		if err == nil {
			*into = n
		}
		return err
	}
}

func (l *Limits) decode(m *yamldoc.Map) {
	m.Value("memory", size(&l.Memory))
	m.Value("cpu", number(&l.CPU))
	m.Value("tasks", whole(&l.Tasks, math.MaxInt32))
	m.Value("tmp", size(&l.Tmp))
	m.Value("shm", size(&l.SHM))
	m.Value("files", whole(&l.Files, math.MaxInt32))
}

// text reads a string. An empty one is refused, so that empty can mean "not given".
func text(into *string) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		if v.Text == "" {
			return problem.New(problem.BadConfig, "leave the key out for its default", "is empty")
		}
		*into = v.Text
		return nil
	}
}

func truth(into *bool) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		b, err := v.Bool()
		if err == nil {
			*into = b
		}
		return err
	}
}

// choice reads true or false where neither is the default. A value that cannot be read is false.
func choice(into **bool) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		*into = new(bool)
		return truth(*into)(v)
	}
}

// whole reads a whole number from 0 to most, which is what the field's type holds; the narrower bounds are Validate's.
func whole[T int | uint16 | uint32](into *T, most int64) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		n, err := v.Int()
		if err != nil {
			return err
		}
		if n < 0 || n > most {
			return problem.New(problem.BadLimit, "", "%d is not between 0 and %d", n, most)
		}
		*into = T(n)
		return nil
	}
}

// percent reads a whole number with a percent sign.
func percent(into *int) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		return parseInto(into, v, func(s string) (int, error) {
			digits, found := strings.CutSuffix(s, "%")
			n, err := strconv.ParseUint(digits, 10, 8)
			if !found || err != nil || strings.Trim(digits, "0123456789") != "" {
				return 0, problem.New(problem.BadLimit, "write a whole number with a percent sign, such as 80%", "%q is not a percentage", s)
			}
			return int(n), nil
		})
	}
}

func word[T ~string](into *T, allowed ...T) func(yamldoc.Value) error {
	words := make([]string, len(allowed))
	for i, w := range allowed {
		words[i] = string(w)
	}
	return func(v yamldoc.Value) error {
		w, err := v.Word(words...)
		if err == nil {
			*into = T(w)
		}
		return err
	}
}

func duration(into *time.Duration) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		return parseInto(into, v, func(s string) (time.Duration, error) {
			d, err := time.ParseDuration(s)
			if err != nil {
				return 0, problem.New(problem.BadConfig, "write a number with s, m or h, such as 30m", "%q is not a duration", s)
			}
			return d, nil
		})
	}
}

// textOrNone is text for what can be switched off again with an empty one.
func textOrNone(into *string) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error { *into = v.Text; return nil }
}

func parseInto[T any](into *T, v yamldoc.Value, parse func(string) (T, error)) error {
	value, err := parse(v.Text)
	if err == nil {
		*into = value
	}
	return err
}

// appendTo reads one value of a list. A bad one keeps its place, so that the index of a field is the one of the file.
func appendTo[T any](into *[]T, parse func(string) (T, error)) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		value, err := parse(v.Text)
		*into = append(*into, value)
		return err
	}
}

func parseListen(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return a, problem.New(problem.BadConfig, "write an IP address and a port, such as 127.0.0.1:18780", "%q is not an address and a port", s)
	}
	return a, nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, problem.New(problem.BadConfig, "write an IP address, such as 10.1.2.3", "%q is not an IP address", s)
	}
	return a, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, problem.New(problem.BadConfig, "write a network, such as 10.90.0.0/20", "%q is not a network", s)
	}
	return p, nil
}

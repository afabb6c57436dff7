package console

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/health"
)

// fact is one line of the configuration, by its key in clawjail.yml.
type fact struct{ Key, Name, Value string }

// machineSettings is the page about the machine.
type machineSettings struct {
	Tabs    []section
	Machine health.Machine
	Groups  []factGroup
}

type factGroup struct {
	Title string
	Facts []fact
}

func (c *Console) machinePage(q *request) error {
	m, err := c.Health.Machine(q.ctx())
	if err != nil {
		return err
	}
	return q.show("settings_machine", "Machine", machineSettings{c.settingsTabs("/machine"), m, c.configured()})
}

// configured is the configuration, of which nothing is secret that is here. It names what it shows, so that no new key is shown
// by itself.
func (c *Console) configured() []factGroup {
	o := c.Config
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	auto := func(text string) string {
		if text == "" || strings.HasPrefix(text, "invalid") {
			return "auto"
		}
		return text
	}
	database := "embedded"
	if o.Database != "" {
		database = "PostgreSQL"
	}
	proxies := make([]string, len(o.BehindProxy))
	for n, p := range o.BehindProxy {
		proxies[n] = p.String()
	}
	none := func(all []string) string { return cmp.Or(strings.Join(all, ", "), "none") }
	return []factGroup{
		{"Where it is", []fact{
			{"listen", "API and console", o.Listen.String()}, {"tls", "TLS of its own", yes(o.TLS.Cert != "")}, {"behind_proxy", "Behind proxies", none(proxies)},
			{"public_url", "Public address", cmp.Or(o.PublicURL, "none")},
			{"node", "Node", cmp.Or(o.Node, "the installation's id")}, {"database", "Database", database}, {"data_dir", "Data", o.DataDir}, {"user", "Runs as", o.User},
		}},
		{"Jails", []fact{
			{"subnet", "Network of the jails", auto(o.Subnet.String())}, {"runtime", "Runtime", o.Runtime}, {"storage", "Storage", string(o.Storage)},
			{"limits.memory", "Memory of a jail", o.Limits.Memory.String()}, {"limits.cpu", "Cores of a jail", fmt.Sprint(o.Limits.CPU)},
			{"limits.tasks", "Tasks of a jail", fmt.Sprint(o.Limits.Tasks)},
		}},
		{"Browser sessions", []fact{
			{"sessions.max", "At the same time", fmt.Sprint(o.Sessions.Max)}, {"sessions.ttl", "Life, unless asked otherwise", o.Sessions.TTL.String()},
			{"sessions.max_ttl", "Longest life", o.Sessions.MaxTTL.String()}, {"sessions.idle", "Closed when unused for", o.Sessions.Idle.String()},
			{"warm_pool.size", "Browsers that wait", fmt.Sprint(o.WarmPool.Size)}, {"warm_pool.browser", "Which of them", string(o.WarmPool.Browser)},
		}},
		{"Agents", []fact{
			{"agents.driver", "Driver", string(o.Agents.Driver)}, {"agents.workspace_roots", "Workspaces are beneath", none(o.Agents.WorkspaceRoots)},
			{"agents.limits.memory", "Memory of an agent", o.Agents.Limits.Memory.String()}, {"agents.limits.cpu", "Cores of an agent", fmt.Sprint(o.Agents.Limits.CPU)},
			{"agents.limits.state", "Disk of /state", o.Agents.Limits.State.String()}, {"agents.log", "Kept of each stream of a log", o.Agents.Log.String()},
			{"docker.image", "Default image of containers", o.Docker.Image},
		}},
		{"Records", []fact{
			{"audit.keep", "The audit log is kept for", sayDays(o.Audit.Keep.Hours())}, {"grants.ttl", "Life of a grant", o.Grants.TTL.String()},
			{"grants.max_ttl", "Longest life of a grant", o.Grants.MaxTTL.String()}, {"console.idle", "A sign-in may go unused for", o.Console.Idle.String()},
			{"console.life", "Longest sign-in", o.Console.Life.String()}, {"log.level", "What the daemons write", o.Log.Level + ", " + o.Log.Format},
		}},
	}
}

func sayDays(hours float64) string {
	if hours >= 48 {
		return fmt.Sprintf("%.0f days", hours/24)
	}
	return fmt.Sprintf("%.0f hours", hours)
}

// hostBrowser is the page about the browser of the desktop.
type hostBrowser struct {
	Tabs []section
	config.HostBrowser
	Headless string
	Devtools string
}

func (c *Console) hostBrowserPage(q *request) error {
	data := hostBrowser{Tabs: c.settingsTabs("/host-browser"), HostBrowser: c.Config.HostBrowser}
	switch c.Config.HostBrowser.Headless {
	case config.HeadlessYes:
		data.Headless = "never has a window"
	case config.HeadlessNo:
		data.Headless = "has a window"
	default:
		data.Headless = "has a window where there is a display"
	}
	if _, devtools, ok := data.HostBrowser.Local(); ok {
		data.Devtools = devtools.String()
	}
	return q.show("settings_browser", "Host browser", data)
}

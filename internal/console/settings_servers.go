package console

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

const serversPath = settingsPath + "/servers"

// serverRow is an MCP server as a page shows it. Of its environment there are names only.
type serverRow struct {
	mcpserver.Status
	Command string
	Names   string // of its environment
	Fixed   bool   // it is of the configuration, and changed there
	For     string // whom it runs for
}

// servers is the page with MCP servers in jails.
type servers struct {
	Tabs    []section
	Servers []serverRow
	Form    *form
	Report  *mcpserver.Report
	May     bool
	Offers  []option
	Wrong   bool // the form was sent, and something of it was
}

func (c *Console) serversPage(q *request) error { return c.showServers(q, blank(), nil) }

func (c *Console) showServers(q *request, f *form, report *mcpserver.Report) error {
	if c.Servers == nil {
		return problem.New(problem.NotFound, "they are served where jails are made", "no MCP servers run here")
	}
	all, err := c.Servers.List(q.ctx(), q.by, q.by.Tenant)
	if err != nil {
		return err
	}
	data := servers{Wrong: !f.ok(), Tabs: c.settingsTabs("/servers"), Form: f, Offers: options("", "yes", "no"), Report: report, May: identity.Can(q.by, identity.ServerChange, "") == nil}
	for _, s := range all {
		row := serverRow{Status: s, Command: strings.Join(s.Command, " "), Names: strings.Join(slices.Sorted(maps.Keys(s.Env)), ", "), Fixed: s.Source == mcpserver.SourceFile}
		var owners []string
		for _, i := range s.Instances {
			owners = append(owners, cmp.Or(i.Name, i.Owner, "all of "+i.Tenant))
		}
		row.For = strings.Join(owners, ", ")
		data.Servers = append(data.Servers, row)
	}
	if !f.ok() {
		return q.again("settings_servers", "MCP servers", data)
	}
	return q.show("settings_servers", "MCP servers", data)
}

func (c *Console) addServer(q *request) error {
	if c.Servers == nil {
		return c.serversPage(q)
	}
	f, err := q.form()
	if err != nil {
		return err
	}
	s := config.MCPServer{Name: f.Get("name"), Command: linesOf(f, "command"), Tenants: f.Words("tenants"), Allow: f.Words("allow")}
	if len(s.Allow) > 0 {
		s.Network = "gateway"
	}
	if tools := f.Words("tools"); len(tools) > 0 {
		s.Tools = tools
	}
	said := map[string]*bool{"yes": new(true), "no": new(false)}
	s.Resources, s.Prompts = said[f.Get("resources")], said[f.Get("prompts")]
	if _, err = c.Servers.Add(q.ctx(), q.by, s); err == nil {
		return q.done(serversPath, "%s is there. Test it to see its tools.", s.Name)
	}
	if problem.CodeOf(err) == problem.Forbidden || !f.refuse(err, map[string]string{"command[0]": "command", "tools[0]": "tools", "allow[0]": "allow", "tenants[0]": "tenants"}) {
		return err
	}
	return c.showServers(q, f, nil)
}

// testServer starts one, and shows what it offers. It takes as long as the server does.
func (c *Console) testServer(q *request) error {
	if c.Servers == nil {
		return c.serversPage(q)
	}
	report, err := c.Servers.Test(q.ctx(), q.by, q.by.Tenant, q.value("name"))
	if err != nil {
		return q.failed(serversPath, err)
	}
	return c.showServers(q, blank(), &report)
}

func (c *Console) removeServer(q *request) error {
	if c.Servers == nil {
		return c.serversPage(q)
	}
	name := q.value("name")
	return q.act(serversPath, c.Servers.Remove(q.ctx(), q.by, name), "%s is removed. What ran of it has ended.", name)
}

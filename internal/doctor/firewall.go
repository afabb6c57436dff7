package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// bridgePrefix is what the bridges of all installations begin with.
const bridgePrefix = "cjbr"

// Filter is a chain of another firewall that decides about packets for this host.
type Filter struct {
	Family string `json:"family"` // ip or inet
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Drops says that packets which no rule accepts are dropped; Refuses that it has a rule that drops or rejects.
	Drops   bool `json:"drops"`
	Refuses bool `json:"refuses"`
	// Accepts are the interfaces that a rule of the table lets in.
	Accepts []string `json:"accepts,omitempty"`
	// Legacy is set for a chain of iptables from before nf_tables.
	Legacy bool `json:"legacy,omitempty"`
}

func (f Filter) String() string {
	name := fmt.Sprintf("%s %s %s", f.Family, f.Table, f.Chain)
	if f.Legacy {
		name += " (iptables-legacy)"
	}
	return name
}

// stops says that the chain may be what swallows jails' packets.
func (f Filter) stops() bool { return f.Drops || f.Refuses }

// otherFirewall finds out whether another firewall would swallow what jails send to the gateway. A verdict "accept" of
// one table does not keep another from dropping, so clawjail's own rules cannot prevent it. A
// connection from inside a slot decides; the rules of the others are read only to name the one to change.
func otherFirewall(ctx context.Context, e *exam) Result {
	manager := e.firewallManager(ctx)
	if e.UID != 0 {
		r := skipped("whether another firewall stands between jails and the gateway is tried as root").hint("sudo clawjail doctor")
		if manager != "" {
			r.Message = manager + " is on; w" + strings.TrimPrefix(r.Message, "w")
			r = r.fact("manager", manager)
		}
		return r
	}
	reached, err := e.Reach(ctx)
	switch {
	case errors.Is(err, errPort):
		return skipped("the gateway's port is taken; see the check gateway_port")
	case err != nil:
		return failed(err)
	}
	var suspects []Filter
	var own string
	if !reached {
		filters, err := e.filters(ctx)
		if err != nil {
			return failed(fmt.Errorf("nothing from a jail reaches the gateway, and the firewall's rules cannot be read: %w", err))
		}
		for _, f := range filters {
			if f.stops() {
				suspects = append(suspects, f)
			}
		}
		// The chains that drop what they do not know come first: a single rule that refuses is mostly about something else.
		slices.SortStableFunc(suspects, func(a, b Filter) int {
			switch {
			case a.Drops == b.Drops:
				return 0
			case a.Drops:
				return -1
			}
			return 1
		})
		if in, err := e.installed(); err == nil {
			own = bridgePrefix + string(in.ID)
		}
	}
	return judgeFirewall(reached, suspects, manager, own, e.Config.Gateway.Port)
}

// judgeFirewall puts what was found into words. own is the bridge of the installation, where there is one.
func judgeFirewall(reached bool, suspects []Filter, manager, own string, port uint16) Result {
	if reached {
		if manager != "" {
			return fine("a jail's connection reaches the gateway; %s does not stop it", manager).fact("manager", manager)
		}
		return fine("a jail's connection reaches the gateway")
	}
	if len(suspects) == 0 {
		return fails("nothing from a jail reaches the gateway, and no chain that drops it was found").
			hint("look at `nft list ruleset` and for programs that filter by eBPF; let %s* reach port %d/tcp of this host", bridgePrefix, port)
	}
	suspect := suspects[0]
	hint := openGateway(suspect, manager, port)
	names := make([]string, len(suspects))
	for i, s := range suspects {
		names[i] = s.String()
	}
	allowed := own != "" && !slices.ContainsFunc(suspects, func(f Filter) bool { return !slices.Contains(f.Accepts, own) })
	r := fails("another firewall%s swallows what jails send to the gateway, probably in the chain %s", called(manager), suspect)
	if allowed {
		// The trial has a bridge of its own, and a rule for exactly one bridge does not know it.
		r = warning("another firewall%s lets %s reach the gateway, and no other bridge: that could not be tried", called(manager), own)
	}
	r = r.hint("%s", hint).fact("suspects", names).fact("interface", bridgePrefix+"*")
	if manager != "" {
		r = r.fact("manager", manager)
	}
	return r
}

func called(manager string) string {
	if manager == "" {
		return ""
	}
	return " (" + manager + ")"
}

const keepRule = "\nsave the rules to keep it, for example with netfilter-persistent save"

// openGateway is the command that lets jails reach the gateway's port and nothing else. It names the bridges of all
// installations, those of trials among them. Further lines are no command.
func openGateway(f Filter, manager string, port uint16) string {
	switch {
	case manager == "ufw":
		return fmt.Sprintf("sudo ufw allow in on %s+ to any port %d proto tcp", bridgePrefix, port)
	case manager == "firewalld":
		// The zone opens every port of the host to the bridge, and clawjail's own table closes all but one before.
		return fmt.Sprintf("sudo firewall-cmd --permanent --zone=trusted --add-interface=%s+ && sudo firewall-cmd --reload", bridgePrefix)
	case f.Legacy:
		return fmt.Sprintf("sudo iptables-legacy -I %s -i %s+ -p tcp --dport %d -j ACCEPT"+keepRule, f.Chain, bridgePrefix, port)
	case f.Family == "ip" && f.Table == "filter" && f.Chain == "INPUT":
		return fmt.Sprintf("sudo iptables -I INPUT -i %s+ -p tcp --dport %d -j ACCEPT"+keepRule, bridgePrefix, port)
	}
	return fmt.Sprintf("sudo nft insert rule %s %s %s iifname '\"%s*\"' tcp dport %d accept\nwrite the same rule into /etc/nftables.conf to keep it",
		f.Family, f.Table, f.Chain, bridgePrefix, port)
}

// firewallManager names the program that manages this host's firewall, where it is one that is known.
func (e *exam) firewallManager(ctx context.Context) string {
	for line := range strings.Lines(e.setting("etc/ufw/ufw.conf")) {
		if value, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(line)), "enabled="); ok && strings.Trim(value, `"'`) == "yes" {
			return "ufw"
		}
	}
	if e.exists("run/systemd/system") {
		if state, err := e.Command(ctx, "systemctl", "is-active", "firewalld"); err == nil && strings.TrimSpace(state) == "active" {
			return "firewalld"
		}
	}
	if e.exists("run/firewalld.pid") {
		return "firewalld"
	}
	return ""
}

// filters are the chains of nf_tables, and those of the older iptables where it is in use.
func (e *exam) filters(ctx context.Context) ([]Filter, error) {
	filters, err := e.Filters(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(strings.Fields(e.setting("proc/net/ip_tables_names")), "filter") {
		return filters, nil
	}
	rules, err := e.Command(ctx, "iptables-legacy", "-S")
	if err != nil {
		return nil, err
	}
	return append(filters, legacyFilter(rules)), nil
}

// legacyFilter reads what iptables -S prints: one line per policy, chain and rule.
func legacyFilter(rules string) Filter {
	f := Filter{Family: "ip", Table: "filter", Chain: "INPUT", Legacy: true}
	for line := range strings.Lines(rules) {
		words := strings.Fields(line)
		after := func(option string) string {
			if i := slices.Index(words, option); i >= 0 && i+1 < len(words) {
				return words[i+1]
			}
			return ""
		}
		target := after("-j")
		switch {
		case after("-P") == "INPUT":
			f.Drops = words[len(words)-1] == "DROP"
		case after("-A") == "INPUT" && (target == "DROP" || target == "REJECT"):
			f.Refuses = true
		case target == "ACCEPT" && after("-i") != "":
			f.Accepts = append(f.Accepts, after("-i"))
		}
	}
	return f
}

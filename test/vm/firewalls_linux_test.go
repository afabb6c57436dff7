//go:build vm && guests

package vm

import "strings"

// server answers at port 4000 of all addresses of the guest, with what it has: perl.
const server = `use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalAddr => "0.0.0.0", LocalPort => 4000, Listen => 16, ReuseAddr => 1) or die $!;
while (my $c = $s->accept) {
	while (<$c>) { last if /^\r?\n$/ }
	my $page = "<title>inside</title>";
	print $c "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: " . length($page) . "\r\nConnection: close\r\n\r\n$page";
}
`

// firewall is one that hosts have. It refuses unknown traffic, to the host and through it.
type firewall struct {
	name    string
	install string
	on, off string
	// again has it make its rules anew.
	again string
	// shows is a command that ends well while the firewall refuses.
	shows string
	// closed firewalls refuse what jails send to the gateway, until the operator has done what the doctor says.
	closed bool
}

var firewalls = []firewall{
	{
		name: "ufw", install: "ufw", closed: true,
		on:    "ufw default deny incoming && ufw default deny routed && ufw --force enable",
		off:   "ufw --force reset && ufw disable",
		again: "ufw disable && ufw --force enable && ufw reload",
		shows: "iptables -S INPUT | grep -x -e '-P INPUT DROP' && iptables -S FORWARD | grep -x -e '-P FORWARD DROP'",
	},
	{
		name: "firewalld", install: "firewalld", closed: true,
		on: "systemctl start firewalld", off: "systemctl stop firewalld", again: "systemctl restart firewalld && firewall-cmd --reload",
		shows: "firewall-cmd --state || { journalctl --no-pager -u firewalld -n 40; false; }",
	},
	{
		name: "Docker", install: "docker.io",
		on: "systemctl start docker", off: "systemctl stop docker.socket docker", again: "systemctl restart docker", shows: "iptables -S FORWARD | grep -x -e '-P FORWARD DROP'",
	},
}

// livesBeside has a firewall beside clawjail's own rules.
func livesBeside(f firewall) func(m *machine) {
	return func(m *machine) {
		counts(m) // the agent is there
		serves(m)
		gateway := m.sh("clawjail agent exec counter -- getent hosts gateway | cut -d ' ' -f 1")
		reaches(m, gateway)
		m.sh("apt-get install -q -y --no-install-recommends " + f.install)
		m.sh(f.on)
		m.eventually(commandLimit, f.shows)
		if f.closed {
			if r := asks(m, "http://inside.test:4000/"); r == 0 {
				m.t.Errorf("%s lets jails through by itself, so this check says nothing", f.name)
			}
			all := m.doctor()
			m.finds(all, "other_firewall", f.name, "cjbr")
			command, _, _ := strings.Cut(all["other_firewall"].Hint, "\n")
			m.sh(strings.ReplaceAll(command, "sudo ", ""))
			m.sh(f.shows)
		}
		m.satisfied(m.doctor(), "other_firewall", "nft")
		reaches(m, gateway)
		browses(m)
		m.sh(f.again)
		m.eventually(commandLimit, f.shows)
		reaches(m, gateway)
		m.sh("systemctl restart clawjail-hostd")
		m.eventually(commandLimit, whole)
		reaches(m, gateway)
		m.sh(f.off + "; apt-get purge -q -y --autoremove " + f.install)
		reaches(m, gateway)
	}
}

// serves starts the server, once, and lets agents and browsers reach it by a rule of the operator's.
func serves(m *machine) {
	m.t.Helper()
	if m.try("systemctl is-active test-server").Status == 0 {
		return
	}
	m.put("/run/server.pl", server, 0o644)
	m.sh("systemd-run --quiet --unit test-server perl /run/server.pl")
	m.sh("clawjail rules add allow http://inside.test:4000 --address 127.0.0.1 --agent counter")
}

// asks has the agent ask for a URL, and says what curl ended with.
func asks(m *machine, url string, more ...string) int {
	m.t.Helper()
	r := m.try("clawjail agent exec counter -- curl -fsS -o /dev/null --max-time 60 " + strings.Join(more, " ") + " " + url)
	m.t.Logf("%s: %d\n%s", url, r.Status, tail(r.Stderr))
	return r.Status
}

// curlRefused and curlHTTP are statuses of curl.
const (
	curlRefused = 7  // no connection, at once
	curlHTTP    = 22 // an answer that is an error
)

// reaches looks that a jail reaches the gateway, and by it what the operator allows, and nothing else of the guest.
func reaches(m *machine, gateway string) {
	m.t.Helper()
	if got := asks(m, "http://inside.test:4000/"); got != 0 {
		m.t.Errorf("what a rule allows: curl ends with %d", got)
	}
	if got := asks(m, "http://outside.test:4000/"); got != curlHTTP {
		m.t.Errorf("what no rule allows: curl ends with %d", got)
	}
	// The server listens there, as a program of the guest sees.
	m.sh("bash -euc 'exec 3<>/dev/tcp/" + gateway + "/4000; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; head -n 1 <&3'")
	if got := asks(m, "http://"+gateway+":4000/", "--noproxy '*'"); got != curlRefused {
		m.t.Errorf("a server of the guest, past the gateway: curl ends with %d", got)
	}
}

// browses opens a browser on the server's page, by the gateway.
func browses(m *machine) {
	m.t.Helper()
	id := m.sh("clawjail session open")
	m.sh("clawjail rules add allow http://inside.test:4000 --address 127.0.0.1 --session " + id)
	m.sh("clawjail session navigate --timeout 2m " + id + " http://inside.test:4000/")
	if title := m.sh("clawjail session eval " + id + " document.title"); !strings.Contains(title, "inside") {
		m.t.Errorf("the page is %q", title)
	}
	m.sh("clawjail session close " + id)
}

//go:build vm && guests

package vm

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/test/vm/wire"
)

// cuts is how often the power is cut. Each costs a start of the guest.
var cuts = flag.Int("cuts", 10, "how often the power of a guest is cut")

// cut is one of them: what was asked for, and what was answered before.
type cut struct {
	*machine
	number int

	mu      sync.Mutex
	added   []string // agents, guarded by mu as what follows
	removed []string
	used    []string // grants with which a session has opened
	tried   []string // grants with which one was asked for, and nothing was answered
	fresh   []string // grants that nobody has used
	done    int
}

// losesNothing cuts the power while everything is written to: what was answered before must be there afterwards, and what
// was not may be there or not, but never in half. QEMU keeps the guest's disk with its default, cache=writeback: what the
// guest has flushed is in the file, and what it has not is lost with QEMU, or is there, as with a real disk.
func losesNothing(m *machine) {
	m.sh("apt-get install -q -y --no-install-recommends sqlite3")
	m.put("/run/cookies.txt", cookieFile, 0o600)
	m.sh("clawjail cookies import /run/cookies.txt --domain example.com --max-sessions 64")
	for i := range *cuts {
		c := &cut{machine: m, number: i}
		c.work()
		began := time.Now()
		m.boot()
		c.isWhole()
		m.t.Logf("cut %d: after %d answers the power was cut; %d agents added, %d removed, %d grants used, %d in use: all is well after %s", i+1, c.done,
			len(c.added), len(c.removed), len(c.used), len(c.tried), time.Since(began).Round(100*time.Millisecond))
	}
	m.sh("apt-get purge -q -y --autoremove sqlite3")
}

// work has the guest write in three ways at once, and cuts the power in the middle of it.
func (c *cut) work() {
	c.t.Helper()
	c.sh("echo kept >/root/kept && sync /root/kept && rm -f /root/lost && sync /root")
	for range 4 { // nobody uses the last
		c.fresh = append(c.fresh, c.grant())
	}
	enough := make(chan struct{})
	var once sync.Once
	var workers sync.WaitGroup
	for _, round := range []func(n int) error{c.changesAgents, c.usesGrants, c.issuesGrants} {
		workers.Go(func() {
			for n := 0; ; n++ {
				if err := round(n); err != nil {
					return // the power is off
				}
				c.mu.Lock()
				c.done++
				if c.done >= 4 && len(c.added)+len(c.removed) > 0 {
					once.Do(func() { close(enough) })
				}
				c.mu.Unlock()
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(c.longer(commandLimit)):
		c.t.Errorf("nothing is done in the guest")
	}
	// Each cut is at another moment of what takes a second or two here.
	time.Sleep(time.Duration(c.number*731%2000) * time.Millisecond)
	c.sh("echo lost >/root/lost")
	c.cut()
	workers.Wait()
}

// answers runs a command that must end well, unless the power goes off.
func (c *cut) answers(command string, stdin ...string) (string, error) {
	r, err := c.ask(wire.Request{Run: []string{"/bin/sh", "-euc", command}, Stdin: []byte(strings.Join(stdin, "")), Seconds: int(c.longer(commandLimit).Seconds())})
	if err == nil && r.Status != 0 {
		c.t.Errorf("%s\nended with %d: %s", command, r.Status, r.Stderr)
		err = fmt.Errorf("it ended with %d", r.Status)
	}
	return strings.TrimSpace(string(r.Stdout)), err
}

func (c *cut) note(list *[]string, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*list = append(*list, what)
}

// changesAgents adds two agents and removes one of them.
func (c *cut) changesAgents(n int) error {
	name := fmt.Sprintf("cut-%d-%d", c.number, n)
	if n%3 == 2 {
		name = fmt.Sprintf("cut-%d-%d", c.number, n-1)
		c.mu.Lock() // from here on nobody knows whether it is there
		c.added = slices.DeleteFunc(c.added, func(a string) bool { return a == name })
		c.mu.Unlock()
		_, err := c.answers("clawjail agent remove --yes " + name)
		if err == nil {
			c.note(&c.removed, name)
		}
		return err
	}
	_, err := c.answers("clawjail agent add " + name + " -- /bin/sleep infinity")
	if err == nil {
		c.note(&c.added, name)
	}
	return err
}

// An account, and how a session with it is opened.
const (
	cookieFile = "# Netscape HTTP Cookie File\n.example.com\tTRUE\t/\tTRUE\t4102444800\tsid\tvalue-of-the-cookie\n"
	withGrant  = "clawjail session open --mode operator --domain example.com --grant -"
)

// usesGrants opens a session with an account, and closes it.
func (c *cut) usesGrants(n int) error {
	if n >= 3 {
		_, err := c.answers("clawjail session ls")
		return err
	}
	token := c.fresh[n]
	id, err := c.answers(withGrant, token)
	if err != nil {
		c.note(&c.tried, token)
		return err
	}
	c.note(&c.used, token)
	_, err = c.answers("clawjail session close " + id)
	return err
}

func (c *cut) issuesGrants(int) error {
	_, err := c.answers("clawjail grant issue --domain example.com")
	return err
}

func (m *machine) grant() string {
	m.t.Helper()
	return m.sh("clawjail grant issue --domain example.com --ttl 1h")
}

// isWhole looks at everything after the guest has started again.
func (c *cut) isWhole() {
	c.t.Helper()
	c.comesBack() // the counting agent, and the audit log
	if got := c.sh("cat /root/kept"); got != "kept" {
		c.t.Errorf("what was flushed is lost: %q", got)
	}
	if r := c.try("cat /root/lost"); strings.Contains(string(r.Stdout), "lost") {
		c.t.Error("what was not flushed is there, so the cut loses nothing")
	}
	if got := c.sh("sqlite3 -readonly /var/lib/clawjail/database/clawjail.db 'PRAGMA integrity_check; PRAGMA foreign_key_check'"); got != "ok" {
		c.t.Errorf("the database: %s", got)
	}
	c.agentsAreAsAnswered()
	if left := c.sh("clawjail session ls --json"); strings.Contains(left, "\"id\"") {
		c.t.Errorf("a session is there after a cut: %s", left)
	}
	if r := c.try(withGrant, c.fresh[len(c.fresh)-1]); r.Status != 0 {
		c.t.Errorf("a grant that nobody has used is refused: %s", r.Stderr)
	} else {
		c.used = append(c.used, c.fresh[len(c.fresh)-1])
		c.sh("clawjail session close " + strings.TrimSpace(string(r.Stdout)))
	}
	for _, token := range c.tried {
		if r := c.try(withGrant, token); r.Status == 0 {
			c.sh("clawjail session close " + strings.TrimSpace(string(r.Stdout)))
		}
		c.used = append(c.used, token)
	}
	for _, token := range c.used {
		if r := c.try(withGrant, token); r.Status == 0 || !strings.Contains(string(r.Stderr), "the grant has been used") {
			c.t.Errorf("a grant that was used: the session ends with %d: %s", r.Status, r.Stderr)
		}
	}
}

// agentsAreAsAnswered looks that each agent that was added runs, that each that was removed is gone, that no other is there in half,
// and that nothing is on the machine of one that is neither.
func (c *cut) agentsAreAsAnswered() {
	c.t.Helper()
	type listed struct {
		Name       string
		Unfinished bool `json:"is_unfinished"`
		Jail       *struct{ Phase string }
	}
	var agents []listed
	settled := func() bool {
		agents = nil
		if err := json.Unmarshal([]byte(c.sh("clawjail agent ls --json")), &agents); err != nil {
			c.t.Fatal(err)
		}
		return len(agents) > 0 && !slices.ContainsFunc(agents, func(a listed) bool { return a.Jail == nil || a.Jail.Phase != "running" || a.Unfinished })
	}
	for deadline := time.Now().Add(c.longer(commandLimit)); !settled(); time.Sleep(time.Second) { // each is started in its turn
		if time.Now().After(deadline) {
			c.t.Fatalf("agents do not come back: %+v", agents)
		}
	}
	there := map[string]bool{}
	for _, a := range agents {
		there[a.Name] = true
	}
	for _, name := range c.added {
		if !there[name] {
			c.t.Errorf("the agent %s, which was added, is lost", name)
		}
	}
	for _, name := range c.removed {
		if there[name] {
			c.t.Errorf("the agent %s, which was removed, is back", name)
		}
	}
	var reaped struct {
		Jails    int
		Findings []any
	}
	if err := json.Unmarshal([]byte(c.sh("clawjail reap --dry-run --json")), &reaped); err != nil {
		c.t.Fatal(err)
	}
	if len(reaped.Findings) > 0 || reaped.Jails < len(agents) {
		c.t.Errorf("%d jails for %d agents, and on the machine: %v", reaped.Jails, len(agents), reaped.Findings)
	}
	if records := c.sh("ls /var/lib/clawjail/journal | grep -c '^a'"); records != fmt.Sprint(len(agents)) {
		c.t.Errorf("%s records of agents' jails in the journal, for %d agents", records, len(agents))
	}
	for name := range there {
		if strings.HasPrefix(name, "cut-") {
			c.sh("clawjail agent remove --yes " + name)
		}
	}
}

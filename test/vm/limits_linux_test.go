//go:build vm

package vm

import (
	"strconv"
	"strings"
	"time"
)

// group finds the control group of the jail that has a memory limit of so many MiB. Each jail of these checks has its own.
func (m *machine) group(mebibytes int) string {
	m.t.Helper()
	path := m.eventually(commandLimit, "grep -rlx "+strconv.Itoa(mebibytes<<20)+" /sys/fs/cgroup/clawjail-*/ --include memory.max")
	if strings.Contains(path, "\n") {
		m.t.Fatalf("several groups have the limit: %s", path)
	}
	return strings.TrimSuffix(path, "/memory.max")
}

// reads compares files of a group with what was declared.
func (m *machine) reads(group string, want map[string]string) {
	m.t.Helper()
	for name, value := range want {
		if got := strings.TrimSpace(m.get(group + "/" + name)); got != value {
			m.t.Errorf("%s: %s is %q, want %q", group, name, got, value)
		}
	}
}

// counted is a number of a file of a group, such as oom_kill of memory.events.
func (m *machine) counted(group, file, key string) int {
	m.t.Helper()
	for line := range strings.Lines(m.get(group + "/" + file)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == key {
			n, err := strconv.Atoi(value)
			if err != nil {
				m.t.Fatal(err)
			}
			return n
		}
	}
	m.t.Fatalf("%s/%s has no %s", group, file, key)
	return 0
}

// limitsAgents runs into each limit of an agent's jail, beside an agent that counts on.
func limitsAgents(m *machine) {
	m.sh("clawjail agent add bomb --memory 96MiB --tasks 40 --cpu 0.5 -- /bin/sleep infinity")
	group := m.group(96)
	m.reads(group, map[string]string{"memory.max": strconv.Itoa(96 << 20), "memory.swap.max": "0", "pids.max": "40", "cpu.max": "50000 100000"})
	for _, at := range [][2]string{{"memory.events", "oom_kill"}, {"pids.events", "max"}} {
		if n := m.counted(group, at[0], at[1]); n != 0 {
			m.t.Errorf("before anything happens %s of %s is %d", at[1], at[0], n)
		}
	}
	before := counts(m)

	if r := m.try("clawjail agent exec bomb -- /bin/sh -c 'tail /dev/zero'"); r.Status == 0 {
		m.t.Error("a program that takes all memory ends well")
	}
	if m.counted(group, "memory.events", "oom_kill") == 0 {
		m.t.Error("the memory limit has ended nothing")
	}
	m.sh("clawjail agent exec bomb -- /bin/true")

	forks := m.try("clawjail agent exec bomb -- /bin/sh -c 'for i in $(seq 100); do sleep 20 & done'")
	if m.counted(group, "pids.events", "max") == 0 {
		m.t.Errorf("a hundred processes are not too many: %s", forks.Stderr)
	}

	throttled := m.counted(group, "cpu.stat", "nr_throttled")
	m.eventually(commandLimit, "clawjail agent exec bomb -- /bin/true") // the sleeping ones have ended
	m.try("clawjail agent exec bomb -- /bin/sh -c 'timeout 5 sh -c \"while :; do :; done\"'")
	if now := m.counted(group, "cpu.stat", "nr_throttled"); now <= throttled {
		m.t.Errorf("a busy program was not throttled: %d times before, %d after", throttled, now)
	}

	if after := counts(m); after <= before {
		m.t.Errorf("its neighbour counted to %d before, and to %d now", before, after)
	}
	m.sh("clawjail agent remove bomb --yes")
}

// limitsBrowsers opens a session and has its page take more memory than the jail has.
func limitsBrowsers(m *machine) {
	first := m.within(2*commandLimit, "clawjail session open --memory 500MiB --cpu 1")
	second := m.within(2*commandLimit, "clawjail session open --memory 501MiB")
	if first.Status != 0 || second.Status != 0 {
		m.t.Fatalf("no session opens: %s%s", first.Stderr, second.Stderr)
	}
	id, neighbour := strings.TrimSpace(string(first.Stdout)), strings.TrimSpace(string(second.Stdout))
	group := m.group(500)
	m.reads(group, map[string]string{"memory.max": strconv.Itoa(500 << 20), "memory.swap.max": "0", "pids.max": "512", "cpu.max": "100000 100000"})
	evaluate := func(session, script string) (string, int) {
		r := m.try("clawjail session eval " + session + " '" + script + "'")
		return string(r.Stdout) + string(r.Stderr), r.Status
	}
	if out, status := evaluate(id, "1+1"); status != 0 || !strings.Contains(out, "2") {
		m.t.Fatalf("the page answers %q", out)
	}
	evaluate(id, `(() => { const a = []; for (let i = 0; i < 700; i++) a.push(new Uint8Array(1 << 20).fill(i)); return a.length })()`)
	for deadline := time.Now().Add(m.longer(time.Minute)); m.counted(group, "memory.events", "oom_kill") == 0; time.Sleep(time.Second) { // the kernel decides when
		if time.Now().After(deadline) {
			m.t.Fatal("the memory limit has ended nothing")
		}
	}
	if m.counted(group, "cpu.stat", "nr_throttled") == 0 {
		m.t.Error("a busy page was not throttled")
	}
	if out, status := evaluate(neighbour, "1+1"); status != 0 || !strings.Contains(out, "2") {
		m.t.Errorf("the neighbour's page answers %q", out)
	}
	m.sh("clawjail session close " + id + " && clawjail session close " + neighbour)
}

//go:build vm && guests

package vm

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// TestContainer runs both halves in a container of Debian's own engine, as packaging/container describes it, in a machine
// that has the engine and no clawjail. It is a part of `make test-vm-all`.
func TestContainer(t *testing.T) {
	var published uint16
	checks := chosen(t, []check{
		{name: "builds the image", do: buildsImage, needed: true},
		{name: "comes up from the shipped file", do: comesUp, needed: true},
		{name: "is reached at the published port from elsewhere", do: func(m *machine) { isReached(m, published) }},
		{name: "opens a session with an account", do: opensOperatorSession},
		{name: "passes its self-test in a container", do: func(m *machine) { passesSelfTest(m, inside+"clawjail", 1) }},
		{name: "keeps agents that share a folder", do: sharesAFolder, needed: true},
		{name: "keeps what it has over a newer image", do: keepsData},
		{name: "leaves nothing of a container behind", do: leavesNothingOfAContainer},
	})
	g := made(t, guest{suite: "bookworm", kernel: "bookworm", arch: "amd64"})
	m := newMachine(t, g, payload(t, g), templates(t, g))
	published = testenv.FreePort(t)
	m.more = []string{"-netdev", fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-:18780", published), "-device", "virtio-net-pci,netdev=net"}
	m.do(checks, "", inside+"clawjail status")
}

// checkout is where the guest has those files of the repository that describe the container.
const checkout = "/root/clawjail"

// compose is the shipped file, and what this guest has otherwise: templates of a disk, which would take a network and minutes to
// make, and a published port at the address that QEMU forwards to.
const compose = "cd " + checkout + " && COMPOSE_HTTP_TIMEOUT=900 CLAWJAIL_ADDRESS=10.0.2.15 docker-compose -f packaging/container/compose.yaml -f templates.yaml "

// inside runs a command in the container.
const inside = compose + "exec -T jails "

// buildsImage has the guest install its engine and build the image, on the guest's own Debian with the packages in it: a build has
// no other place to get them from.
func buildsImage(m *machine) {
	m.put("/etc/systemd/network/test.network", "[Match]\nDriver=virtio_net\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n", 0o644)
	m.sh("systemctl start systemd-networkd")
	m.sh("tar -C / --one-file-system --numeric-owner --exclude=./root --exclude=./usr/lib/modules --exclude='./tmp/*' " +
		"-cf /root/base.tar . ./payload/debs")
	m.sh("apt-get update -q && apt-get install -q -y --no-install-recommends docker.io docker-compose iproute2 nftables && docker info")
	m.eventually(commandLimit, "ip -4 addr show | grep 10.0.2.15")
	m.sh("mkdir -p " + checkout + "/packaging/container")
	for _, name := range []string{"Dockerfile", "compose.yaml", "clawjail.yml", "start.sh"} {
		content, err := os.ReadFile(filepath.Join(testenv.Repository(m.t), "packaging/container", name))
		if err != nil {
			m.t.Fatal(err)
		}
		m.put(checkout+"/packaging/container/"+name, string(content), 0o644)
	}
	m.sh("docker import /root/base.tar $(sed -n 's/^ARG BASE=//p' " + checkout + "/packaging/container/Dockerfile) && rm /root/base.tar")
	m.put(checkout+"/templates.yaml", "services: {jails: {volumes: ['/var/lib/clawjail/templates:/var/lib/clawjail/templates']}}\n", 0o644)
	m.image("old")
}

// image builds it with one of the packages.
func (m *machine) image(of string) {
	m.t.Helper()
	m.sh("rm -rf " + checkout + "/out && mkdir -p " + checkout + "/out/packages && cp /payload/" + of + "/*.deb " + checkout + "/out/packages/")
	if r := m.within(3*commandLimit, compose+"build"); r.Status != 0 {
		m.t.Fatalf("build the image: %s%s", tail(r.Stdout), tail(r.Stderr))
	}
}

func comesUp(m *machine) {
	m.sh(compose + "up --detach")
	m.eventually(2*commandLimit, inside+"clawjail status")
	asksDoctor(m, inside+"clawjail")
	mode := m.sh("docker inspect --format '{{.HostConfig.Privileged}} {{.HostConfig.NetworkMode}} {{.HostConfig.PidMode}} {{.HostConfig.CgroupnsMode}}' $(" + compose + "ps -q jails)")
	if f := strings.Fields(mode); len(f) < 2 || f[0] != "false" || strings.Contains(mode, "host") {
		m.t.Errorf("it runs as %q: privileged, or in a namespace of the machine's", mode)
	}
}

// isReached asks for the console through the forwarded port of the guest, as a browser outside of the machine does.
func isReached(m *machine, published uint16) {
	url := fmt.Sprintf("http://127.0.0.1:%d", published)
	client := http.Client{Timeout: time.Minute}
	get := func(path, host string) (int, string) {
		req, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			m.t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		answer, err := client.Do(req)
		if err != nil {
			m.t.Fatalf("from outside of the machine: %v", err)
		}
		text, err := io.ReadAll(bufio.NewReader(answer.Body))
		if err := answer.Body.Close(); err != nil {
			m.t.Error(err)
		}
		if err != nil {
			m.t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	if status, text := get("/console/", ""); status != http.StatusUnauthorized || !strings.Contains(text, "<html") {
		m.t.Errorf("the console asks nobody to sign in, and answers %d: %.200s", status, text)
	}
	if status, _ := get("/v1/sessions", ""); status != http.StatusUnauthorized {
		m.t.Errorf("the API answers %d to who has no key", status)
	}
	if status, _ := get("/v1/health", "attacker.example"); status != http.StatusForbidden {
		m.t.Errorf("the API answers %d to another name", status)
	}
}

func opensOperatorSession(m *machine) {
	m.sh(inside+"sh -c 'cat >/tmp/cookies.txt'", cookieFile)
	m.sh(inside + "clawjail cookies import /tmp/cookies.txt --domain example.com")
	grant := m.sh(inside + "clawjail grant issue --domain example.com")
	id := m.sh(inside+withGrant, grant)
	if mode := m.sh(inside + "clawjail session ls --json"); !strings.Contains(mode, "operator") {
		m.t.Errorf("the sessions are %s", mode)
	}
	m.sh(inside + "clawjail session close " + id)
}

// sharesAFolder syncs three agents with one folder. Each writes its name there.
func sharesAFolder(m *machine) {
	var list strings.Builder
	list.WriteString("clawbots:\n")
	for _, name := range []string{"ada", "ben", "cyd"} {
		fmt.Fprintf(&list, "  - name: %s\n    workspace: /srv/workspaces/crew\n    command: [/bin/sh, -c, \"echo %s >>/workspace/crew; while sleep 1; do date +%%s >/state/now; done\"]\n", name, name)
	}
	m.sh(inside+"sh -c 'mkdir -p /srv/workspaces && cat >/tmp/clawbots.yml'", list.String())
	m.sh(inside + "clawjail agent sync --yes -f /tmp/clawbots.yml")
	for _, name := range []string{"ada", "ben", "cyd"} {
		m.eventually(commandLimit, inside+"clawjail agent exec "+name+" -- sh -c 'grep ada /workspace/crew && grep ben /workspace/crew && grep cyd /workspace/crew && test -s /state/now'")
	}
	// An agent is bound by the group of the container, and by its own inside of it.
	if out := m.sh("find /sys/fs/cgroup -path '*docker*' -name pids.max -path '*clawjail-*' | wc -l"); out == "0" {
		m.t.Error("no jail has a control group within the container's")
	}
}

// keepsData has a newer image take the place of the container. The agent's files, keys and the audit log are there afterwards.
func keepsData(m *machine) {
	m.sh(inside + "clawjail agent exec ada -- sh -c 'echo kept >/state/kept'")
	version, key := m.sh(inside+"clawjail version"), m.sh(inside+"cat /var/lib/clawjail/control/admin.key")
	m.image("new")
	m.sh(compose + "up --detach")
	m.eventually(2*commandLimit, inside+"clawjail status")
	if now := m.sh(inside + "clawjail version"); now == version {
		m.t.Errorf("it is still %s", now)
	}
	if m.sh(inside+"cat /var/lib/clawjail/control/admin.key") != key {
		m.t.Error("its key is another one")
	}
	m.eventually(2*commandLimit, inside+"clawjail agent exec ada -- grep kept /state/kept")
	m.sh(inside + "clawjail audit verify")
}

// leavesNothingOfAContainer takes the container away with its volumes, while agents run in it.
func leavesNothingOfAContainer(m *machine) {
	traces := map[string]string{
		"control groups": "find /sys/fs/cgroup -type d -name 'clawjail*'", "loop devices": "cat /sys/block/loop*/loop/backing_file",
		"processes": "grep -ls clawjail /proc/[0-9]*/comm | grep .", "volumes": "docker volume ls --quiet", "mounts": "grep docker/overlay2 /proc/mounts",
	}
	// The machine's own interfaces and tables have none of clawjail's at any time.
	never := map[string]string{"interfaces": "ls -d /sys/class/net/cj*", "tables": "nft list tables | grep clawjail"}
	there := func(look string) string {
		r := m.try(look + " || :")
		return strings.TrimSpace(string(r.Stdout))
	}
	for what, look := range traces {
		if there(look) == "" {
			m.t.Errorf("there are no %s while agents run, so nobody would see them left", what)
		}
	}
	for what, look := range never {
		if seen := there(look); seen != "" {
			m.t.Errorf("the machine has %s of the container's: %s", what, seen)
		}
	}
	m.sh(compose + "down --volumes")
	for _, all := range []map[string]string{traces, never} {
		for what, look := range all {
			if left := there(look); left != "" {
				m.t.Errorf("it leaves %s: %s", what, left)
			}
		}
	}
}

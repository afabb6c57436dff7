//go:build vm && guests

package vm

import "strings"

// importsAgain undoes what importsATemplate makes.
const importsAgain = `cd /var/lib/clawjail/templates && { test ! -e .browser || mv .browser browser; }
rm -f /root/clawbot.tar; clawjail agent remove --yes imported; clawjail template rm other`

// importsATemplate has a machine without a network say what to do about a template that it cannot build, and does that.
func importsATemplate(m *machine) {
	// A control plane that starts has no browser in its pool that was made before.
	m.sh("systemctl stop clawjail && mv /var/lib/clawjail/templates/browser /var/lib/clawjail/templates/.browser && systemctl start clawjail")
	r := m.within(2*commandLimit, "clawjail session open")
	m.sh("mv /var/lib/clawjail/templates/.browser /var/lib/clawjail/templates/browser")
	for _, want := range []string{"there is no template browser yet", "clawjail template image browser --output browser.tar", "clawjail template import browser.tar"} {
		if r.Status == 0 || !strings.Contains(string(r.Stderr), want) {
			m.t.Errorf("without a template and a mirror a session ends with %d, and not with %q: %s", r.Status, want, r.Stderr)
		}
	}
	// On the other machine, and on this one.
	for _, command := range []string{"clawjail template image clawbot --output /root/clawbot.tar", "clawjail template import /root/clawbot.tar other"} {
		if r := m.within(3*commandLimit, command); r.Status != 0 {
			m.t.Fatalf("%s: %d: %s", command, r.Status, r.Stderr)
		}
	}
	m.sh("rm /root/clawbot.tar && clawjail template verify other && clawjail agent add imported --template other")
	m.eventually(commandLimit, `clawjail agent logs imported | grep -F '"gateway":"200"'`)
	m.sh("clawjail agent remove --yes imported && clawjail template rm other")
}

// bringsUpContainers brings up the same file as containers of Debian's engine.
func bringsUpContainers(m *machine) {
	m.sh("apt-get install -q -y --no-install-recommends docker.io && docker info")
	if r := m.within(3*commandLimit, "clawjail template image clawbot"); r.Status != 0 {
		m.t.Fatalf("give the engine an image: %d: %s", r.Status, r.Stderr)
	}
	bringsUp(m, "--driver docker")
	m.sh("docker network rm sand_bed && apt-get purge -q -y --autoremove docker.io")
	counts(m)
}

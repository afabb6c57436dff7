package jail

import "strings"

// ExecScript is the text of launch.sh for a program that joins others in a jail that runs: it is staged in a folder of its
// own beside env.sh, does not wait, and replaces itself like LaunchScript.
func (p Program) ExecScript(folder, home string) []byte {
	var b strings.Builder
	b.WriteString("set -eu\nHOME=" + shellQuote(home) + "\nexport HOME\n")
	p.enter(&b, folder, home)
	p.run(&b, false)
	return []byte(b.String())
}

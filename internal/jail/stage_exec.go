package jail

import "strings"

// ExecScript is the text of launch.sh for a program that joins others in a jail that runs: it is staged in a folder of its
// own beside env.sh, waits for nobody, and replaces itself like LaunchScript.
func (p Program) ExecScript(folder, home string) []byte {
	var b strings.Builder
	b.WriteString("set -eu\nHOME=" + shellQuote(home) + "\nexport HOME\n")
	b.WriteString(". " + shellQuote(folder+"/"+StageEnv) + "\n")
	if p.Wire == WirePipe34 {
		b.WriteString("exec 3<&0 4>&1 0</dev/null 1>&2\n")
	}
	dir := p.Dir
	if dir == "" {
		dir = home
	}
	b.WriteString("cd " + shellQuote(dir) + "\n")
	p.run(&b, false)
	return []byte(b.String())
}

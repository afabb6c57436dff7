package jail

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Names of the staged files inside StageDir.
const (
	StageLaunch = "launch.sh"
	StageEnv    = "env.sh"
	StageGate   = "gate" // opened for reading before anything else; see Runtime.Begin
	StageHome   = "home" // a folder whose content is copied into the home directory
)

// usual is what every program is given that is not given something else: text in UTF-8, and a time zone.
func usual() map[string]string { return map[string]string{"LANG": "C.UTF-8", "TZ": "UTC"} }

// Environment is Env with what every program is given. Variables of its image, as NAME=VALUE, stay as they are.
func (p Program) Environment(image []string) map[string]string {
	out := usual()
	for _, variable := range image {
		name, _, _ := strings.Cut(variable, "=")
		delete(out, name)
	}
	maps.Copy(out, p.Env)
	maps.DeleteFunc(out, func(name, _ string) bool { return slices.Contains(p.Without, name) })
	return out
}

// Inherit gives a program the variables of another, and takes away what that one does without, where it says nothing about
// them.
func (p *Program) Inherit(env map[string]string, without []string) {
	for _, name := range without {
		if _, ok := p.Env[name]; !ok {
			p.Without = append(p.Without, name)
		}
	}
	all := make(map[string]string, len(env)+len(p.Env)) // neither of them is changed
	maps.Copy(all, env)
	maps.Copy(all, p.Env)
	p.Env = all
}

// EnvScript is the text of env.sh: one sorted export per variable, single-quoted, so that no value is ever
// interpreted. It is a file and not an argument because arguments can be read by others.
func (p Program) EnvScript() []byte {
	var b strings.Builder
	for _, name := range slices.Sorted(slices.Values(p.Without)) {
		b.WriteString("unset " + name + "\n")
	}
	env := p.Environment(nil)
	for _, k := range slices.Sorted(maps.Keys(env)) {
		b.WriteString("export " + k + "=" + shellQuote(env[k]) + "\n")
	}
	return []byte(b.String())
}

// LaunchScript is the text of launch.sh, which starts the program. It waits until it may begin, connects the wires, fills the home
// directory and enters the working directory. Then it replaces itself; or, as the first process of a namespace, it stays and
// waits, also for what others have left behind, and ends as the program does: with 128 and its number after a signal.
func (p Program) LaunchScript(home string, homeFiles, first bool) []byte {
	var b strings.Builder
	b.WriteString("set -eu\n: <" + StageDir + "/" + StageGate + "\n")
	b.WriteString("HOME=" + shellQuote(home) + "\nexport HOME\n")
	if homeFiles { // before its variables: they may say where it finds programs, or that it finds none
		b.WriteString("cp -R " + StageDir + "/" + StageHome + "/. \"$HOME\"/\n")
	}
	p.enter(&b, StageDir, home)
	p.run(&b, first)
	return []byte(b.String())
}

// enter takes on the program's variables, which are in a folder, connects its wires, and goes where it begins.
func (p Program) enter(b *strings.Builder, folder, home string) {
	b.WriteString(". " + shellQuote(folder+"/"+StageEnv) + "\n")
	if p.Wire == WirePipe34 {
		b.WriteString("exec 3<&0 4>&1 0</dev/null 1>&2\n")
	}
	b.WriteString("cd " + shellQuote(cmp.Or(p.Dir, home)) + "\n")
}

// run ends a script with the program.
func (p Program) run(b *strings.Builder, first bool) {
	if first {
		b.WriteString("exec 9>&2 2>/dev/null\n") // what a shell says of signals is not the program's
	} else {
		b.WriteString("exec ")
	}
	words := make([]string, len(p.Argv))
	for i, a := range p.Argv {
		words[i] = shellQuote(a)
	}
	b.WriteString(strings.Join(words, " "))
	if first {
		b.WriteString(" 2>&9 9>&- || exit\nexit 0")
	}
	b.WriteString("\n")
}

// shellQuote makes one word of any text without NUL: inside single quotes nothing is special, and a single
// quote is written by leaving them (POSIX 2.2.2).
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

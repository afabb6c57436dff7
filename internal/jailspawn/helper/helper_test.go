package helper

import (
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/jailspawn/command"
)

const good = `# who may do what
runs 3
jail mcp0 users 1001,1002 as clawdie root /usr/local/bastille/jails/mcp0/root
root scratch stage /var/tmp/stage path /srv/jails/scratch as worker users 1001 network inherit # the build
`

func TestAConfigurationIsWhatRootWrote(t *testing.T) {
	c, err := ParseConfig([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	j, r := c.Jails["mcp0"], c.Roots["scratch"]
	if c.Runs != 3 || c.RunDir != defaultDir || !slices.Equal(j.Users, []int{1001, 1002}) || j.As != "clawdie" || j.Stage != "/home/clawdie/.cache/clawjail/stage" || j.HostNetwork {
		t.Errorf("%+v", c)
	}
	if r.Root != "/srv/jails/scratch" || r.Stage != "/var/tmp/stage" || !r.HostNetwork || r.As != "worker" {
		t.Errorf("%+v", r)
	}
}

func TestAConfigurationWithAMistakeIsNone(t *testing.T) {
	const place = "users 1001 as clawdie root /j/a"
	for _, text := range []string{
		"runs", "runs 0", "runs 9999", "runs 08", "runs 1 2", "runs 1\nruns 2", "color red", "jail", "jail a", "jail A " + place, "jail ../a " + place, "jail 1 " + place,
		"jail a users 1001 as clawdie", "jail a users 0 as clawdie root /j/a", "jail a users 1001,1001 as clawdie root /j/a", "jail a users 1001, as clawdie root /j/a",
		"jail a users 01 as clawdie root /j/a", "jail a users 1001 as root root /j/a", "jail a users 1001 as -x root /j/a", "jail a users 1001 as clawdie root /", "jail a users 1001 as clawdie root j/a",
		"jail a users 1001 as clawdie root /j/../a", "jail a users 1001 as clawdie path /j/a", "jail a " + place + " network inherit", "root a users 1001 as b path /j network host",
		"jail a " + place + " as other", "jail a " + place + " stage", "jail a " + place + "\njail a " + place, "jail a " + place + " \x00", "commands /a\ncommands /b", "run_dir a",
		"jail a " + place + strings.Repeat(" ", maxLine), strings.Repeat("#\n", maxConfig),
	} {
		if c, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%.80q is taken: %+v", text, c)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("jail a users 1 as b root /c stage /d"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		for _, all := range []map[string]Place{c.Jails, c.Roots} {
			for name, p := range all {
				if !command.ValidShortName(name) || !command.ValidUser(p.As) || !command.ValidPath(p.Root) || !command.ValidPath(p.Stage) || len(p.Users) == 0 || slices.Contains(p.Users, 0) {
					t.Errorf("%q: %+v", name, p)
				}
			}
		}
		if c.Runs < 1 || c.Runs > maxRuns {
			t.Errorf("%d runs", c.Runs)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add("enter\x00mcp0\x000123456789abcdef0123456789abcdef")
	f.Add("end\x00mcp0")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRequest(strings.Split(text, "\x00"))
		if err != nil {
			return
		}
		if !slices.Contains([]string{VerbEnter, VerbRun, VerbEnd}, r.Verb) || r.Name != "" && !command.ValidShortName(r.Name) || r.ID != "" && !command.ValidID(r.ID) || r.Name+r.ID == "" {
			t.Errorf("%+v", r)
		}
	})
}

func TestOneLineIsOneLine(t *testing.T) {
	if got := oneLine("a\nb\x1b[31m\xff" + strings.Repeat("x", 1000)); len(got) != 300 || !strings.HasPrefix(got, "a?b?[31m?x") {
		t.Errorf("%q", got)
	}
}

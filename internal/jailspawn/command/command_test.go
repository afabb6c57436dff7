package command

import (
	"slices"
	"strings"
	"testing"
)

func TestCommandLines(t *testing.T) {
	e := Ephemeral{Name: EphemeralName(strings.Repeat("ab", 16)), Path: "/srv/jails/a", User: "clawdie"}
	open := e
	open.HostNetwork = true
	for want, got := range map[string][]string{
		"jexec -l -U clawdie mcp0 /bin/sh /x/launch.sh": Enter("mcp0", "clawdie", Shell, "/x/launch.sh"),
		"jail -q -c name=cjsabababab path=/srv/jails/a host.hostname=cjsabababab ip4=disable ip6=disable mount.devfs devfs_ruleset=4 enforce_statfs=2 securelevel=3 " +
			"children.max=0 sysvmsg=new sysvsem=new sysvshm=new exec.clean exec.jail_user=clawdie command=/bin/sh /x/launch.sh": e.Create(Shell, "/x/launch.sh"),
		"jail -R cjsabababab":              e.remove(),
		"umount /srv/jails/a/dev":          e.Unmount(),
		"jls -j mcp0 jid":                  Look("mcp0"),
		"jexec mcp0 /bin/kill -KILL 12 13": End("mcp0", []int{12, 13}),
		"ps -ax -o pid= -o ppid= -o stat=": Processes(),
	} {
		if strings.Join(got, " ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if argv := open.Create(Shell, "a=b"); !slices.Contains(argv, "ip4=inherit") || argv[len(argv)-2] != "command=/bin/sh" || argv[len(argv)-1] != "a=b" {
		t.Errorf("the command is not last: %q", argv)
	}
}

func (e Ephemeral) remove() []string { return Remove(e.Name) }

func TestNamesAreNothingElse(t *testing.T) {
	for _, s := range []string{"", "-a", "a.b", "a b", "0", "123", "a/b", "a\n", "a=b", "_a", strings.Repeat("a", 65), "ä"} {
		if ValidName(s) || ValidShortName(s) {
			t.Errorf("%q is a name", s)
		}
	}
	for _, s := range []string{"mcp0", "agent-jail", "A1", "3a"} {
		if !ValidName(s) {
			t.Errorf("%q is no name", s)
		}
	}
	for _, s := range []string{"", "/", "a", "/a/", "/a//b", "/a/../b", "/a b", "/a\"", "/a$b", "/a=b", "/a\x00"} {
		if ValidPath(s) {
			t.Errorf("%q is a path", s)
		}
	}
	for _, s := range []string{"", "root", "toor", "-u", "A", "a b", "0"} {
		if ValidUser(s) {
			t.Errorf("%q is a user", s)
		}
	}
}

func TestDescendantsAreFoundWhereverTheyWent(t *testing.T) {
	const text = "  1  0 Ss\n 10 1 S\n 11 10 S+\n 12 11 Z\n 13 12 S\n 14 1 S\n 20 10 R\n 21 20 S\nbad line\n 10 10 S\n"
	if got := Descendants(text, 10, 20); !slices.Equal(got, []int{11, 13}) {
		t.Errorf("%v", got)
	}
}

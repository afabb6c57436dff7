package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAccountCommands(t *testing.T) {
	only := func(programs ...string) func(string) bool {
		return func(p string) bool {
			for _, q := range programs {
				if p == q {
					return true
				}
			}
			return false
		}
	}
	for _, c := range []struct {
		name string
		has  func(string) bool
		want []string
	}{
		{"shadow", only("useradd", "adduser", "addgroup"), []string{
			"useradd --system --user-group --no-create-home --home-dir /h --shell /sbin/nologin --comment clawjail control plane claw"}},
		{"FreeBSD", only("pw", "adduser"), []string{"pw useradd -n claw -d /h -s /sbin/nologin -c clawjail control plane -w no"}},
		{"busybox", only("adduser", "addgroup"), []string{"addgroup -S claw",
			"adduser -S -D -H -h /h -s /sbin/nologin -g clawjail control plane -G claw claw"}},
		{"nothing", only(), nil},
	} {
		var got []string
		for _, words := range accountCommands("claw", "/h", "/sbin/nologin", c.has) {
			got = append(got, strings.Join(words, " "))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if got := nologin(func(string) bool { return false }); got != "/bin/false" {
		t.Errorf("without nologin the shell is %s", got)
	}
}

func TestEnsureAccountMakesAUserWhoCannotLogIn(t *testing.T) {
	testenv.Need(t, testenv.Root)
	testenv.Tool(t, "useradd")
	userdel := testenv.Tool(t, "userdel")
	name := fmt.Sprintf("cjtest%d", os.Getpid())
	t.Cleanup(func() {
		if out, err := exec.Command(userdel, name).CombinedOutput(); err != nil {
			t.Errorf("remove the user: %v: %s", err, out)
		}
	})
	home := filepath.Join(t.TempDir(), "home")
	for n, want := range []bool{true, false} {
		made, err := EnsureAccount(t.Context(), name, home)
		if err != nil || made != want {
			t.Fatalf("call %d: made %t, %v", n+1, made, err)
		}
	}
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := credentialOf(u)
	if err != nil || c.Uid == 0 || c.Uid >= 1000 || len(c.Groups) != 0 {
		t.Errorf("credential %+v of %+v, %v", c, u, err)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(passwd)) {
		if strings.HasPrefix(line, name+":") && !strings.HasSuffix(line, "nologin\n") {
			t.Errorf("it can log in: %s", line)
		}
	}
	if _, err := os.Stat(home); err == nil {
		t.Error("a home was made")
	}
}

func TestRootIsNoControlPlane(t *testing.T) {
	for _, u := range []user.User{{Uid: "0", Gid: "12"}, {Uid: "12", Gid: "0"}, {Uid: "x", Gid: "1"}} {
		if c, err := credentialOf(&u); err == nil {
			t.Errorf("%+v became %+v", u, c)
		}
	}
}

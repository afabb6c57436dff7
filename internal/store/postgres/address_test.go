package postgres

import (
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestCheckURL(t *testing.T) {
	const good = "kX9-nobody-guesses-this"
	for _, v := range []string{"PGPASSWORD", "PGHOST", "PGUSER", "PGDATABASE", "PGSSLMODE", "PGSERVICE"} {
		t.Setenv(v, "")
	}
	t.Setenv("PGPASSFILE", t.TempDir()+"/none")
	tests := []struct {
		name, url string
		message   string // of the refusal; empty: accepted
	}{
		{"loopback", "postgres://claw:" + good + "@127.0.0.1/jail", ""},
		{"loopback of IPv6", "postgres://claw:" + good + "@[::1]/jail", ""},
		{"localhost", "postgres://claw:" + good + "@localhost:5433/jail", ""},
		{"the other scheme", "postgresql://claw:" + good + "@localhost/jail", ""},
		{"a socket needs no password", "postgres:///jail?host=/run/postgresql", ""},
		{"a socket, and any password", "postgres://claw:postgres@/jail?host=/run/postgresql", ""},
		{"TLS", "postgres://claw:" + good + "@db.example/jail?sslmode=require", ""},
		{"TLS with names checked", "postgres://claw:" + good + "@db.example/jail?sslmode=verify-full", ""},

		{"no password", "postgres://claw@127.0.0.1/jail", "no password"},
		{"an empty password", "postgres://claw:@127.0.0.1/jail", "no password"},
		{"no password over TLS", "postgres://claw@db.example/jail?sslmode=verify-full", "no password"},
		{"the password of images", "postgres://claw:postgres@127.0.0.1/jail", "anybody would try"},
		{"in other letters", "postgres://claw:ChangeMe@127.0.0.1/jail", "anybody would try"},
		{"encoded", "postgres://claw:%70assword@127.0.0.1/jail", "anybody would try"},
		{"in the query", "postgres://claw@127.0.0.1/jail?password=secret", "anybody would try"},
		{"of the documentation of an image", "postgres://claw:mysecretpassword@127.0.0.1/jail", "anybody would try"},
		{"the user's name", "postgres://claw:claw@127.0.0.1/jail", "anybody would try"},
		{"the database's name", "postgres://claw:Jail@127.0.0.1/jail", "anybody would try"},
		{"well known over TLS", "postgres://claw:admin@db.example/jail?sslmode=verify-full", "anybody would try"},

		{"a network without TLS", "postgres://claw:" + good + "@db.example/jail?sslmode=disable", "without TLS"},
		{"TLS if the server wants it", "postgres://claw:" + good + "@db.example/jail?sslmode=prefer", "without TLS"},
		{"TLS if nothing else works", "postgres://claw:" + good + "@db.example/jail?sslmode=allow", "without TLS"},
		{"the mode is not given", "postgres://claw:" + good + "@10.0.0.5/jail", "without TLS"},
		{"a name that only begins like loopback", "postgres://claw:" + good + "@127.0.0.1.example/jail", "without TLS"},
		{"the second host of two", "postgres://claw:" + good + "@127.0.0.1,db.example/jail", "without TLS"},
		{"a socket, and then a host", "postgres://claw@/jail?host=/run/postgresql,127.0.0.1", "no password"},

		{"no URL", "host=127.0.0.1 user=claw password=" + good, "not a URL"},
		{"another database", "mysql://claw:" + good + "@127.0.0.1/jail", "not a URL"},
		{"a port that is none", "postgres://claw:" + good + "@127.0.0.1:x/jail", "not a URL"},
		{"a mode that is none", "postgres://claw:" + good + "@127.0.0.1/jail?sslmode=maybe", "not a URL"},
		{"nothing", "", "not a URL"},
	}
	for _, tt := range tests {
		err := CheckURL(tt.url)
		if tt.message == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		p, ok := problem.As(err)
		if !ok || p.Code != problem.BadConfig || p.Hint == "" || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: got %v, want one that says %q", tt.name, err, tt.message)
		}
		if ok && strings.Contains(err.Error()+p.Hint, good) {
			t.Errorf("%s: the password is in %q", tt.name, err)
		}
	}
	t.Setenv("PGPASSWORD", "postgres")
	if err := CheckURL("postgres://claw@127.0.0.1/jail"); err == nil || !strings.Contains(err.Error(), "anybody would try") {
		t.Errorf("the password of the environment: %v", err)
	}
}

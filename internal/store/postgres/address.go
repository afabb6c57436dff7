package postgres

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// wellKnown are passwords of examples, of images and of those who wanted to get on. The names of the user and of the
// database belong to them as well.
var wellKnown = []string{
	"postgres", "postgresql", "pgpass", "mysecretpassword", "password", "passwd", "pass", "pw", "secret", "changeme", "change-me",
	"change_me", "changeit", "admin", "administrator", "root", "toor", "test", "testing", "example", "default", "database", "db",
	"demo", "dev", "local", "guest", "user", "username", "qwerty", "letmein", "welcome", "hunter2", "abc123", "password1",
	"password123", "p@ssw0rd", "123", "1234", "12345", "123456", "1234567", "12345678", "123456789", "1234567890", "0000", "1111",
	"000000", "111111", "clawjail", "hermit", "hermitclaw",
}

// CheckURL says whether the URL of a database may be used, without connecting: it is valid, a connection over a
// network is encrypted, and a connection that is not over a Unix socket has a password that is not a well-known one.
func CheckURL(databaseURL string) error {
	_, err := parse(databaseURL)
	return err
}

func parse(databaseURL string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil || !IsURL(databaseURL) {
		// The reason may quote the URL, and with it the password.
		return nil, problem.New(problem.BadConfig, "write database: postgres://USER:PASSWORD@HOST/NAME?sslmode=verify-full",
			"database: is not a URL of a PostgreSQL database")
	}
	conn := config.ConnConfig
	type way struct {
		host      string
		encrypted bool
	}
	// Other hosts, and the same one without TLS where the mode allows that, are tried after the first.
	ways := []way{{conn.Host, conn.TLSConfig != nil}}
	for _, f := range conn.Fallbacks {
		ways = append(ways, way{f.Host, f.TLSConfig != nil})
	}
	for _, w := range ways {
		if strings.HasPrefix(w.host, "/") {
			continue
		}
		if conn.Password == "" {
			return nil, problem.New(problem.BadConfig, "give the user a password of its own, or use the server's Unix socket: "+
				"postgres:///NAME?host=/run/postgresql", "database: has no password for %s", w.host)
		}
		if isWellKnown(conn.Password, conn.User, conn.Database) {
			return nil, problem.New(problem.BadConfig, "choose a random one: ALTER USER … PASSWORD …, for example from openssl rand -hex 24",
				"the password in database: is one that anybody would try")
		}
		if !w.encrypted && !hostport.IsLoopback(w.host) {
			return nil, problem.New(problem.BadConfig, "add ?sslmode=verify-full&sslrootcert=FILE to it, or at least ?sslmode=require",
				"database: would send credentials to %s without TLS", w.host)
		}
	}
	notice(config)
	return config, nil
}

// IsURL says whether the address of a database is one of a PostgreSQL server.
func IsURL(databaseURL string) bool {
	return strings.HasPrefix(databaseURL, "postgres://") || strings.HasPrefix(databaseURL, "postgresql://")
}

func isWellKnown(password, user, database string) bool {
	return slices.ContainsFunc(append([]string{user, database}, wellKnown...), func(known string) bool {
		return strings.EqualFold(password, known)
	})
}

package cookiefile

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/weblogin/cookiefile/firefox"
)

// Schemas of moz_cookies, by the version of the database. Expiry is in seconds in 13, and in milliseconds in 16.
const (
	schema13 = `CREATE TABLE moz_cookies (id INTEGER PRIMARY KEY, originAttributes TEXT NOT NULL DEFAULT '', name TEXT, value TEXT, host TEXT,
		path TEXT, expiry INTEGER, lastAccessed INTEGER, creationTime INTEGER, isSecure INTEGER, isHttpOnly INTEGER,
		inBrowserElement INTEGER DEFAULT 0, sameSite INTEGER DEFAULT 0, rawSameSite INTEGER DEFAULT 0, schemeMap INTEGER DEFAULT 0,
		CONSTRAINT moz_uniqueid UNIQUE (name, host, path, originAttributes)); PRAGMA user_version = 13`
	schema16 = `CREATE TABLE moz_cookies (id INTEGER PRIMARY KEY, originAttributes TEXT NOT NULL DEFAULT '', name TEXT, value TEXT, host TEXT,
		path TEXT, expiry INTEGER, lastAccessed INTEGER, creationTime INTEGER, isSecure INTEGER, isHttpOnly INTEGER,
		inBrowserElement INTEGER DEFAULT 0, sameSite INTEGER DEFAULT 256, schemeMap INTEGER DEFAULT 0,
		isPartitionedAttributeSet INTEGER DEFAULT 0, updateTime INTEGER,
		CONSTRAINT moz_uniqueid UNIQUE (name, host, path, originAttributes)); PRAGMA user_version = 16`
)

// profile makes a database as a running Firefox has it: the table is in the file, and what is added afterwards is in
// the log alone, because the connection stays open.
func profile(t testing.TB, schema string) (folder string, db *sql.DB) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "ab12cd.default-release")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folder, firefox.Database)+"?_pragma=journal_mode(wal)&_pragma=wal_autocheckpoint(0)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	do(t, db, schema+"; PRAGMA wal_checkpoint(TRUNCATE)")
	return folder, db
}

func do(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// add inserts a cookie with some columns.
func add(t testing.TB, db *sql.DB, columns map[string]any) {
	t.Helper()
	all := map[string]any{"name": "n", "value": "v", "host": "example.test", "path": "/", "expiry": 1830000000, "isSecure": 1, "isHttpOnly": 0, "sameSite": 1}
	for k, v := range columns {
		all[k] = v
	}
	var names, marks []string
	var values []any
	for k, v := range all {
		names, marks, values = append(names, k), append(marks, "?"), append(values, v)
	}
	do(t, db, "INSERT INTO moz_cookies ("+strings.Join(names, ",")+") VALUES ("+strings.Join(marks, ",")+")", values...)
}

// fingerprint is the content of every file of a folder but the mapped index.
func fingerprint(t testing.TB, folder string) string {
	t.Helper()
	var out strings.Builder
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %x %v\n", e.Name(), sha256.Sum256(data), info.ModTime().UnixNano())
	}
	return out.String()
}

func readProfile(t testing.TB, path string) *Result {
	t.Helper()
	o := options()
	o.TempDir = t.TempDir()
	r, err := Read(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(o.TempDir); err != nil || len(left) > 0 {
		t.Errorf("the private copy is left: %v, %v", left, err)
	}
	return r
}

func TestFirefoxProfile(t *testing.T) {
	folder, db := profile(t, schema16)
	ms := int64(1830000000_500)
	for _, columns := range []map[string]any{
		{"name": "sid", "value": "v1", "host": ".example.test", "expiry": ms, "isHttpOnly": 1, "sameSite": 2},
		{"name": "unset", "value": "v2", "host": "www.example.test", "path": "/a", "expiry": ms, "isSecure": 0, "sameSite": 256},
		{"name": "none", "value": "v3", "expiry": ms, "sameSite": 0},
		{"name": "zero", "value": "v4", "expiry": ms, "sameSite": 0, "isSecure": 0},
		{"name": "seconds", "value": "v5", "expiry": 1830000000},
		{"name": "chip", "value": "v6", "expiry": ms, "originAttributes": "^partitionKey=%28https%2Cother.test%29", "isPartitionedAttributeSet": 1},
		{"name": "chip2", "value": "v7", "expiry": ms, "originAttributes": "^partitionKey=%28https%2Cexample.test%2C8443%2Cf%29", "isPartitionedAttributeSet": 1},
		{"name": "chip3", "value": "v8", "expiry": ms, "originAttributes": "^partitionKey=%28https%2Cexample.test%29", "isPartitionedAttributeSet": 1},
		{"name": "dfpi", "value": "v9", "expiry": ms, "originAttributes": "^partitionKey=%28https%2Cother.test%29"},
		{"name": "zero-container", "value": "v10", "expiry": ms, "originAttributes": "^userContextId=0"},
		{"name": "empty", "value": nil, "expiry": ms},

		{"name": "work", "value": "canary", "expiry": ms, "originAttributes": "^userContextId=2"},
		{"name": "work2", "value": "canary", "expiry": ms, "originAttributes": "^userContextId=2&partitionKey=%28https%2Cother.test%29"},
		{"name": "private", "value": "canary", "expiry": ms, "originAttributes": "^privateBrowsingId=1"},
		{"name": "fpi", "value": "canary", "expiry": ms, "originAttributes": "^firstPartyDomain=other.test"},
		{"name": "odd", "value": "canary", "expiry": ms, "originAttributes": "odd"},
		{"name": "badkey", "value": "canary", "expiry": ms, "originAttributes": "^partitionKey=%28about%2Cblank%29"},
		{"name": "insecure", "value": "canary", "expiry": ms, "isSecure": 0, "originAttributes": "^partitionKey=%28https%2Cother.test%29"},
		{"name": "old", "value": "canary", "expiry": int64(1700000000_000)},
		{"name": "other", "value": "canary", "expiry": ms, "host": ".other.test"},
	} {
		add(t, db, columns)
	}
	before := fingerprint(t, folder)
	byFolder := readProfile(t, folder)
	byFile := readProfile(t, filepath.Join(folder, firefox.Database))
	if diff := cmp.Diff(before, fingerprint(t, folder)); diff != "" {
		t.Errorf("the profile was changed (-before +after):\n%s", diff)
	}
	want := []string{
		"chip=v6; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax; in https://other.test true",
		"chip2=v7; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax; in https://example.test true",
		"chip3=v8; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax; in https://example.test false",
		"dfpi=v9; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax; in https://other.test true",
		"empty=; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax",
		"none=v3; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=None",
		"seconds=v5; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax",
		"sid=v1; .example.test; /; 2027-12-28T13:20:00Z; Secure; HttpOnly; SameSite=Strict",
		"zero=v4; example.test; /; 2027-12-28T13:20:00Z",
		"zero-container=v10; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=Lax",
		"unset=v2; www.example.test; /a; 2027-12-28T13:20:00Z",
	}
	if diff := cmp.Diff(want, inTheClear(byFolder)); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, inTheClear(byFile)); diff != "" {
		t.Errorf("cookies of the file (-want +got):\n%s", diff)
	}
	report := Report{
		Format: Firefox, Read: 15, Kept: 11, Domains: []DomainCount{{"example.test", 14, true, 0}, {"other.test", 1, false, 0}},
		Expired: []cookies.ID{{Name: "old", Domain: "example.test", Path: "/"}},
		Invalid: []Invalid{
			{Cookie: &cookies.ID{Name: "badkey", Domain: "example.test", Path: "/"}, Reason: cookies.BadPartition,
				Text: "it belongs to an opaque partition, which cannot be made again"},
			{Cookie: &cookies.ID{Name: "insecure", Domain: "example.test", Path: "/", TopLevelSite: "https://other.test", HasCrossSiteAncestor: true},
				Reason: cookies.InsecurePartition, Text: "it is partitioned and not Secure"},
		},
		Notes: []string{
			"session cookies are not in a Firefox profile's database (Firefox keeps them with its open tabs); a site that logs in with one needs a login in a clawjail session",
			"2 cookies were isolated by Firefox itself, without the site asking for it; they are imported as partitioned",
			"2 cookies of containers were left out; only the default container is read",
			"3 cookies of private windows or other isolated contexts were left out",
		},
	}
	if diff := cmp.Diff(report, byFolder.Report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestOlderFirefoxWroteSecondsAndFewerColumns(t *testing.T) {
	folder, db := profile(t, schema13)
	add(t, db, map[string]any{"name": "sid", "sameSite": 0})
	add(t, db, map[string]any{"name": "old", "expiry": 1700000000})
	r := readProfile(t, folder)
	want := []string{"sid=v; example.test; /; 2027-12-28T13:20:00Z; Secure; SameSite=None"}
	if diff := cmp.Diff(want, inTheClear(r)); diff != "" || len(r.Report.Expired) != 1 {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
}

// The newest cookies of a running Firefox are in its log: without it they are not there.
func TestTheLogIsRead(t *testing.T) {
	folder, db := profile(t, schema16)
	add(t, db, map[string]any{"name": "sid"})
	if got := readProfile(t, folder).Report.Kept; got != 1 {
		t.Fatalf("kept %d", got)
	}
	alone := filepath.Join(t.TempDir(), "alone.sqlite")
	data, err := os.ReadFile(filepath.Join(folder, firefox.Database))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(alone, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readProfile(t, alone).Report.Kept; got != 0 {
		t.Errorf("the cookie was not in the log, so this test shows nothing: %d", got)
	}
}

func TestFoldersThatAreNoProfileAreRefusedWithWhatToGive(t *testing.T) {
	folder, _ := profile(t, schema16)
	_, err := Read(t.Context(), filepath.Dir(folder), options())
	refused(t, err, folder)

	chromium := t.TempDir()
	if err := os.WriteFile(filepath.Join(chromium, "Cookies"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Read(t.Context(), chromium, options())
	refused(t, err, "encrypts")
	_, err = Read(t.Context(), t.TempDir(), options())
	refused(t, err, "no cookies.sqlite")
}

func TestDatabasesThatAreNotFirefoxesAreRefused(t *testing.T) {
	database := func(statement string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "x.sqlite")
		db, err := sql.Open("sqlite", "file:"+path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		do(t, db, statement)
		return path
	}
	good, db := profile(t, schema16)
	for i := range 200 {
		add(t, db, map[string]any{"name": fmt.Sprint("canary", i), "value": strings.Repeat("canary", 100)})
	}
	do(t, db, "PRAGMA wal_checkpoint(TRUNCATE)")
	whole, err := os.ReadFile(filepath.Join(good, firefox.Database))
	if err != nil {
		t.Fatal(err)
	}
	// A row of the table's last page points out of its page.
	torn := append([]byte(nil), whole...)
	for i := len(torn) / 2; i < len(torn); i++ {
		torn[i] ^= 0x5a
	}
	tests := map[string]struct{ path, want string }{
		"Chromium": {database("CREATE TABLE cookies (host_key TEXT, encrypted_value BLOB)"), "encrypted"},
		"another":  {database("CREATE TABLE bookmarks (a)"), "not the cookie database"},
		"missing":  {database("CREATE TABLE moz_cookies (name TEXT, value TEXT)"), "originAttributes is missing"},
		"a view": {database(`CREATE VIEW moz_cookies AS SELECT '' AS originAttributes, 'canary' AS name, 'v' AS value, 'example.test' AS host,
			'/' AS path, 1830000000 AS expiry, 1 AS isSecure, 1 AS isHttpOnly`), "not the cookie database"},
		"header alone": {write(t, "x.sqlite", firefox.Magic), "damaged"},
		"cut":          {write(t, "x.sqlite", string(whole[:len(whole)/2])), "damaged"},
		"torn":         {write(t, "x.sqlite", string(torn)), "damaged"},
		"not a file": {func() string {
			p := filepath.Join(t.TempDir(), firefox.Database)
			_ = os.Mkdir(p, 0o700)
			return filepath.Dir(p)
		}(), "not a file"},
		"log no file":   {withFolderAsLog(t, whole), "not a file"},
		"too large":     {sparse(t, 65<<20), "larger"},
		"log too large": {withSparseLog(t, whole), "larger"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Read(t.Context(), tt.path, options())
			refused(t, err, tt.want)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, good, options()); err == nil {
		t.Error("a caller who left gets an answer")
	}
}

func withFolderAsLog(t testing.TB, database []byte) string {
	path := write(t, "x.sqlite", string(database))
	if err := os.Mkdir(path+"-wal", 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func sparse(t testing.TB, size int64) string {
	path := write(t, "x.sqlite", firefox.Magic)
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func withSparseLog(t testing.TB, database []byte) string {
	path := write(t, "x.sqlite", string(database))
	if err := os.Rename(sparse(t, 65<<20), path+"-wal"); err != nil {
		t.Fatal(err)
	}
	return path
}

// A database is untrusted bytes like any other.
func FuzzFirefox(f *testing.F) {
	folder, db := profile(f, schema13)
	add(f, db, map[string]any{"originAttributes": "^partitionKey=%28https%2Cother.test%29"})
	do(f, db, "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=delete")
	db.Close()
	whole, err := os.ReadFile(filepath.Join(folder, firefox.Database))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, fmt.Sprint("x", os.Getpid()))
		if err := os.WriteFile(path, append([]byte(firefox.Magic), data[min(len(data), 16):]...), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Read(t.Context(), path, Options{Domains: []string{"example.test"}, Now: epoch, TempDir: dir})
		if err != nil {
			refused(t, err, "")
			return
		}
		for _, c := range r.Cookies {
			if err := cookies.Validate(c); err != nil {
				t.Fatal(err)
			}
		}
	})
}

package template

import (
	"bufio"
	"bytes"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// The public archive of Debian: the default of every build, and the only one that a finished template knows.
const (
	publicMirror         = "http://deb.debian.org/debian"
	publicSecurityMirror = "http://deb.debian.org/debian-security"
	debianKeyring        = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// The variables that override where packages come from.
const (
	EnvDebianMirror         = "CLAWJAIL_DEBIAN_MIRROR"
	EnvDebianSecurityMirror = "CLAWJAIL_DEBIAN_SECURITY_MIRROR"
)

// mirrors is where a build gets Debian packages. The lists of any mirror must carry Debian's own signature.
type mirrors struct {
	main, security string
	keyring        string
}

// chooseMirrors are the host's own mirrors when it is the same release of Debian, else the public archive.
func (s *Store) chooseMirrors(suite string) mirrors {
	m := mirrors{main: publicMirror, security: publicSecurityMirror, keyring: filepath.Join(s.hostRoot, debianKeyring)}
	if hostRelease(s.hostRoot) == suite {
		// Last to first, so that the first one stays.
		for _, source := range slices.Backward(debianSources(hostSources(s.hostRoot))) {
			switch {
			case slices.Contains(source.suites, suite) && path.Base(strings.TrimRight(source.uri, "/")) == "debian":
				m.main = source.uri
			case slices.Contains(source.suites, suite+"-security"):
				m.security = source.uri
			}
		}
	}
	return m
}

// findMirrors chooses the mirrors: the environment's, else those of chooseMirrors.
func (s *Store) findMirrors(suite string) (mirrors, error) {
	m := s.chooseMirrors(suite)
	for name, field := range map[string]*string{EnvDebianMirror: &m.main, EnvDebianSecurityMirror: &m.security} {
		if value := s.getenv(name); value != "" {
			if !isMirror(value) {
				return m, problem.New(problem.BadConfig, "write it as http://host/debian or https://host/debian",
					"%s is not the address of a mirror: %q", name, value)
			}
			*field = value
		}
	}
	if !isFile(m.keyring) {
		return m, problem.New(problem.ToolMissing, "install it: apt-get install debian-archive-keyring",
			"the keys that sign Debian packages are not installed (%s)", m.keyring)
	}
	return m, nil
}

// list is the sources.list of a build or of a finished template.
func (m mirrors) list(suite, option string) string {
	var b strings.Builder
	for _, line := range [][2]string{{m.main, suite}, {m.main, suite + "-updates"}, {m.security, suite + "-security"}} {
		b.WriteString("deb ")
		b.WriteString(option)
		b.WriteString(line[0] + " " + line[1] + " main\n")
	}
	return b.String()
}

// debianSources are those of the sources that can be mirrors of Debian, the certain ones first: many others publish
// packages under the same suite and component, signed by keys of their own.
func debianSources(sources []aptSource) []aptSource {
	certain := func(s aptSource) bool { return strings.HasPrefix(path.Base(s.signedBy), "debian-archive-") }
	var first, second []aptSource
	for _, source := range sources {
		switch {
		case certain(source):
			first = append(first, source)
		case source.signedBy == "":
			second = append(second, source)
		}
	}
	return append(first, second...)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// isMirror reports whether the text is an http or https URL that can stand in a sources.list.
func isMirror(text string) bool {
	if strings.ContainsAny(text, " \t\r\n[]#\"'\\") {
		return false
	}
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == ""
}

// hostRelease is the code name of the host when it is Debian, else empty.
func hostRelease(root string) string {
	data, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		return ""
	}
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = strings.Trim(value, `"'`)
		}
	}
	if values["ID"] != "debian" {
		return ""
	}
	return values["VERSION_CODENAME"]
}

// aptSource is one source of binary packages that has the component main.
type aptSource struct {
	uri      string
	suites   []string
	signedBy string
}

// hostSources reads the host's apt sources, both formats (sources.list(5)). Entries that are disabled, have no
// component main, or are not fetched by http or https are left out. Files that cannot be read are, too: the public
// archive is then used.
func hostSources(root string) []aptSource {
	var out []aptSource
	files := []string{filepath.Join(root, "etc/apt/sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		// The pattern is a constant, and a bad pattern is Glob's only error.
		found, _ := filepath.Glob(filepath.Join(root, "etc/apt/sources.list.d", pattern))
		files = append(files, found...)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if strings.HasSuffix(file, ".sources") {
			out = append(out, parseDeb822(data)...)
		} else {
			out = append(out, parseSourcesList(data)...)
		}
	}
	return out
}

// parseSourcesList reads the one-line format: deb [option=value …] uri suite component….
func parseSourcesList(data []byte) []aptSource {
	var out []aptSource
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || !strings.ContainsAny(rest[:1], " \t") {
			continue
		}
		rest = strings.TrimSpace(rest)
		var source aptSource
		if strings.HasPrefix(rest, "[") {
			options, after, found := strings.Cut(rest[1:], "]")
			if !found {
				continue
			}
			for option := range strings.FieldsSeq(options) {
				if value, ok := strings.CutPrefix(option, "signed-by="); ok {
					source.signedBy = value
				}
			}
			rest = after
		}
		fields := strings.Fields(rest)
		if len(fields) < 3 || !slices.Contains(fields[2:], "main") || !isMirror(fields[0]) {
			continue
		}
		source.uri, source.suites = fields[0], fields[1:2]
		out = append(out, source)
	}
	return out
}

// parseDeb822 reads the format of *.sources files: paragraphs of fields, values continued by indented lines.
func parseDeb822(data []byte) []aptSource {
	var out []aptSource
	fields := map[string]string{}
	name := ""
	flush := func() {
		defer func() { fields, name = map[string]string{}, "" }()
		if !slices.Contains(strings.Fields(fields["types"]), "deb") ||
			!slices.Contains(strings.Fields(fields["components"]), "main") ||
			slices.Contains([]string{"no", "false", "0", "off"}, strings.ToLower(fields["enabled"])) {
			return
		}
		for uri := range strings.FieldsSeq(fields["uris"]) {
			if isMirror(uri) {
				out = append(out, aptSource{uri: uri, suites: strings.Fields(fields["suites"]), signedBy: fields["signed-by"]})
				return
			}
		}
	}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for scanner.Scan() {
		line := scanner.Text()
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			fields[name] += " " + strings.TrimSpace(line)
		default:
			if key, value, ok := strings.Cut(line, ":"); ok {
				name = strings.ToLower(strings.TrimSpace(key))
				fields[name] = strings.TrimSpace(value)
			}
		}
	}
	flush()
	return out
}

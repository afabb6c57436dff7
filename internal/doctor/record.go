package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail/freebsd/transcript"
	"github.com/clawjail/clawjail/internal/problem"
)

// RecordOptions say what a recording is made of.
type RecordOptions struct {
	Run hostcmd.Runner
	// Dataset is the configured dataset, below which one is made for the recording; Dir is a folder for its mount point.
	Dataset, Dir string
	// Template is the dataset of a template whose clone the recording's jail gets as its root; empty when there is none, and then
	// the root is an empty dataset.
	Template string
	// HostName is masked, as are addresses and whatever is not clawjail's.
	HostName string
	Now      func() time.Time
	To       io.Writer
}

// Names of what a recording makes and removes. They are no installation's.
const (
	recordJail   = "cjdoctor"
	recordAnchor = "clawjail/doctor"
	recordAddr   = "192.0.2.1" // for documentation, RFC 5737
	recordTable  = "browser_tasks"

	// The names that stand in a recording for the dataset, for that of the template and for the folder.
	recordDataset  = "zroot/clawjail"
	recordTemplate = recordDataset + "/templates/browser"
	recordDir      = "{root}/var/run/clawjail"
)

// Record writes a transcript of what the commands of this host answer: first those that only look, then a try that makes and
// removes a dataset with a snapshot and a clone, a pair of interfaces, an address in a table of an anchor of its own, limits,
// and a jail without programs. All of them are removed before Record returns, also after an error. The objects of other programs on
// the host are left out, and host names, addresses and the pool's name are masked.
func Record(ctx context.Context, o RecordOptions) (err error) {
	if o.Dataset == "" {
		return problem.New(problem.BadConfig, "set zfs_dataset in the configuration", "a recording needs a ZFS dataset in which it can make another one")
	}
	r := &recorder{RecordOptions: o, name: "doctor" + strings.ToLower(rand.Text()[:6])}
	system, err := o.Run.Run(ctx, "uname", "-srm")
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	there := []string{recordDataset}
	if o.Template != "" {
		there = append(there, recordTemplate)
	}
	if r.to, err = transcript.NewWriter(o.To, strings.TrimSpace(system), o.Now(), there...); err != nil {
		return err
	}
	r.look(ctx)
	r.try(ctx)
	return errors.Join(r.err, ctx.Err())
}

type recorder struct {
	RecordOptions
	to   *transcript.Writer
	name string // of the dataset, below Dataset
	err  error  // the first that kept something from being written
	// files are what the next command reads.
	files map[string]string
}

// run runs a command and writes down how it ended, whatever that was. note is for people; others says that the answer lists
// what other programs have, of which only what is clawjail's is kept.
func (r *recorder) run(ctx context.Context, note string, others bool, words ...string) (stdout string, ok bool) {
	if ctx.Err() != nil || r.err != nil {
		return "", false
	}
	stdout, stderr, status, err := r.start(ctx, words)
	e := transcript.Entry{Note: note, Unchecked: others, Status: status, Stdout: r.mask(stdout), Stderr: r.mask(stderr)}
	for path, text := range r.files {
		e.Files = map[string]string{r.mask(path): r.mask(text)}
	}
	if err != nil {
		e.Status, e.Unchecked, e.Note = 127, true, strings.TrimSpace(note+" not run: "+r.mask(err.Error()))
	}
	if others {
		e.Stdout = ours(words, e.Stdout)
	}
	for _, w := range words {
		e.Command = append(e.Command, r.mask(w))
	}
	r.err = r.to.Write(e)
	return stdout, err == nil && status == 0
}

// start runs a command to its end. Its standard error is kept also when it does not fail: pfctl(8) counts there.
func (r *recorder) start(ctx context.Context, words []string) (stdout, stderr string, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, hostcmd.Timeout)
	defer cancel()
	cmd, err := r.Run.Command(ctx, words[0], words[1:]...)
	if err != nil {
		return "", "", 0, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
		return out.String(), errs.String(), exit.ExitCode(), nil
	}
	return out.String(), errs.String(), 0, err
}

// look runs what only looks, and what fails because something is not there.
func (r *recorder) look(ctx context.Context) {
	for _, name := range []string{"kern.osreldate", "kern.racct.enable", "kern.features.vimage", "net.link.bridge.pfil_member", "security.mac.do.rules"} {
		r.run(ctx, "", true, "sysctl", "-n", name)
	}
	none := r.Dataset + "/" + r.name + "-none"
	for _, words := range [][]string{
		{"kldstat", "-q", "-m", "clawjail_none"},
		{"zfs", "list", "-Hp", "-o", "name,mountpoint,mounted,origin,used", none},
		{"zfs", "destroy", none}, {"zfs", "unmount", none}, {"zfs", "set", "readonly=on", none},
		{"zfs", "snapshot", none + "@s"}, {"zfs", "clone", none + "@s", none + "-clone"},
		{"jls", "-j", recordJail, "jid"}, {"jail", "-R", recordJail}, {"jexec", recordJail, "/bin/sh"},
		{"ifconfig", "e0a_" + recordJail}, {"ifconfig", "-j", recordJail, "lo0"}, {"ifconfig", "-g", "clawjail_none"},
		{"pfctl", "-a", recordAnchor, "-t", recordTable, "-T", "show"},
		{"rctl", "jail:" + recordJail}, {"rctl", "-r", "jail:" + recordJail},
		{"umount", filepath.Join(r.Dir, r.name)},
		{"ps", "-J", recordJail, "-o", "pid="},
	} {
		r.run(ctx, "what is not there", false, words...)
	}
	for _, words := range [][]string{
		{"jls", "-d", "-n", "-q", "jid", "name", "path", "dying"}, {"ifconfig", "-l"}, {"ifconfig", "-g", "epair"}, {"mount", "-p"},
		{"pfctl", "-s", "info"}, {"rctl"},
	} {
		r.run(ctx, "of others nothing is shown", true, words...)
	}
}

// try makes one of each and removes it. One that could not be made is not tried further, and those that were made are removed whatever
// happens: in the reverse order, and with the caller's context or without.
func (r *recorder) try(ctx context.Context) {
	undo := func(words ...string) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
		defer cancel()
		if r.err != nil { // then nothing can be written, and it is removed all the same
			_, _ = r.Run.Run(ctx, words[0], words[1:]...) // a try to clean up after an error that is reported
			return
		}
		r.run(ctx, "", false, words...)
	}
	set, dir := r.Dataset+"/"+r.name, filepath.Join(r.Dir, r.name)
	defer func() {
		for _, path := range []string{dir, dir + "-clone", dir + "-root"} { // they are empty: what was mounted there is gone
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && r.err == nil {
				r.err = fmt.Errorf("record: %w", err)
			}
		}
	}()
	if _, ok := r.run(ctx, "", false, "zfs", "create", "-o", "mountpoint="+dir, set); !ok {
		return
	}
	defer undo("zfs", "destroy", set)
	r.run(ctx, "", false, "zfs", "create", "-o", "mountpoint="+dir, set)
	r.run(ctx, "", false, "zfs", "list", "-Hp", "-o", "name,mountpoint,mounted,origin", set)
	if _, ok := r.run(ctx, "", false, "zfs", "snapshot", set+"@clawjail"); ok {
		defer undo("zfs", "destroy", set+"@clawjail")
		if _, ok := r.run(ctx, "", false, "zfs", "clone", "-o", "mountpoint="+dir+"-clone", set+"@clawjail", set+"-clone"); ok {
			defer undo("zfs", "destroy", set+"-clone")
			r.run(ctx, "", true, "mount", "-p")
			r.run(ctx, "has dependent clones", false, "zfs", "destroy", set+"@clawjail")
			r.run(ctx, "", false, "zfs", "list", "-Hp", "-o", "name,mountpoint,mounted,origin", set+"-clone")
			r.run(ctx, "has children", false, "zfs", "destroy", set)
		}
	}
	r.tryInterfaces(ctx, undo)
	r.tryTable(ctx, undo)
	if r.Template == "" {
		r.tryJail(ctx, dir, undo)
		return
	}
	snapshot, root := r.Template+"@"+r.name, dir+"-root"
	if _, ok := r.run(ctx, "", false, "zfs", "snapshot", snapshot); !ok {
		return
	}
	defer undo("zfs", "destroy", snapshot)
	if _, ok := r.run(ctx, "", false, "zfs", "clone", "-o", "atime=off", "-o", "mountpoint="+root, "-o", "setuid=off", snapshot, set+"-root"); !ok {
		return
	}
	defer undo("zfs", "destroy", set+"-root")
	r.run(ctx, "", false, "zfs", "set", "readonly=on", set+"-root")
	r.run(ctx, "", false, "zfs", "get", "-Hp", "-o", "value", "readonly", set+"-root")
	r.tryJail(ctx, root, undo)
}

func (r *recorder) tryInterfaces(ctx context.Context, undo func(...string)) {
	out, ok := r.run(ctx, "", true, "ifconfig", "epair", "create", "description", "clawjail "+recordJail)
	if !ok {
		return
	}
	a := strings.TrimSpace(out)
	b := strings.TrimSuffix(a, "a") + "b"
	name := "e0a_" + recordJail
	if _, ok := r.run(ctx, "", true, "ifconfig", a, "name", name); !ok {
		defer undo("ifconfig", a, "destroy")
		return
	}
	defer undo("ifconfig", name, "destroy")
	r.run(ctx, "", true, "ifconfig", b, "name", "e0b_"+recordJail)
	r.run(ctx, "", false, "ifconfig", name, "ether", "58:9c:fc:00:00:0a")
	r.run(ctx, "", false, "ifconfig", name, "up")
	r.run(ctx, "", true, "ifconfig", name)
	r.run(ctx, "the name is taken", false, "ifconfig", "e0b_"+recordJail, "name", name)
	r.run(ctx, "the name is too long", false, "ifconfig", name, "name", "e0a_cjdoctor_long")
	r.run(ctx, "no such bridge", false, "ifconfig", "cjnone", "addm", name)
}

// tryTable adds an address to a table that no rule names, in an anchor that nothing evaluates.
func (r *recorder) tryTable(ctx context.Context, undo func(...string)) {
	table := []string{"pfctl", "-a", recordAnchor, "-t", recordTable, "-T"}
	words := func(more ...string) []string { return append(append([]string(nil), table...), more...) }
	if _, ok := r.run(ctx, "", false, words("add", recordAddr)...); !ok {
		return
	}
	defer undo(words("kill")...)
	for _, verb := range []string{"add", "test"} {
		r.run(ctx, "", false, words(verb, recordAddr)...)
	}
	r.run(ctx, "", false, words("show")...)
	for range 2 {
		r.run(ctx, "", false, words("delete", recordAddr)...)
	}
	r.run(ctx, "", false, words("test", recordAddr)...)
}

// recordConf is a jail without programs, devices or interfaces of the host.
const recordConf = "%s {\n\tpath = \"%s\";\n\thost.hostname = %s;\n\tpersist;\n\tvnet;\n\tenforce_statfs = 2;\n\tchildren.max = 0;\n\texec.clean;\n\tstop.timeout = 0;\n}\n"

func (r *recorder) tryJail(ctx context.Context, dir string, undo func(...string)) {
	conf := dir + ".conf"
	if strings.ContainsAny(dir, "\"\\$\n") || r.err != nil || ctx.Err() != nil {
		return
	}
	text := fmt.Sprintf(recordConf, recordJail, dir, recordJail)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		r.err = fmt.Errorf("record: %w", err)
		return
	}
	defer func() {
		if err := os.Remove(conf); err != nil && r.err == nil {
			r.err = fmt.Errorf("record: %w", err)
		}
	}()
	if _, ok := r.run(ctx, "", false, "rctl", "-a", "jail:"+recordJail+":maxproc:deny=5"); ok {
		defer undo("rctl", "-r", "jail:"+recordJail)
		r.run(ctx, "rules are there before the jail is", false, "rctl", "jail:"+recordJail)
	}
	r.files = map[string]string{conf: text}
	_, ok := r.run(ctx, "", false, "jail", "-f", conf, "-c", recordJail)
	if r.files = nil; !ok {
		return
	}
	defer undo("jail", "-R", recordJail)
	r.run(ctx, "", false, "jail", "-f", conf, "-c", recordJail)
	r.run(ctx, "the jid differs", true, "jls", "-d", "-n", "-q", "jid", "name", "path", "dying")
	r.run(ctx, "", false, "ifconfig", "-j", recordJail, "-l")
	r.run(ctx, "there is no such program in it", false, "jexec", recordJail, "/nothing")
	r.run(ctx, "no process", false, "ps", "-J", recordJail, "-o", "pid=")
}

var (
	anAddress = regexp.MustCompile(`\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b`)
	aSixth    = regexp.MustCompile(`\b(?:[0-9a-fA-F]{1,4}:){2,}(?::?[0-9a-fA-F]{1,4})+(?:%\w+)?|\bfe80::[0-9a-fA-F:]+(?:%\w+)?`)
	aTime     = regexp.MustCompile(`^\d\d:\d\d:\d\d$`)
	aMAC      = regexp.MustCompile(`\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b`)
)

// mask takes out what says which host it is: its name, the pool's, the folder's, and every address that is not a recording's.
func (r *recorder) mask(text string) string {
	if r.Template != "" {
		text = strings.ReplaceAll(text, r.Template, recordTemplate)
	}
	text = strings.ReplaceAll(text, r.Dataset, recordDataset)
	text = strings.ReplaceAll(text, r.Dir, recordDir)
	text = strings.ReplaceAll(text, r.name, "doctor")
	if len(r.HostName) > 1 {
		text = strings.ReplaceAll(text, r.HostName, "host")
		if short, _, dotted := strings.Cut(r.HostName, "."); dotted && len(short) > 2 {
			text = regexp.MustCompile(`\b`+regexp.QuoteMeta(short)+`\b`).ReplaceAllString(text, "host")
		}
	}
	text = aMAC.ReplaceAllStringFunc(text, func(mac string) string {
		if strings.HasPrefix(mac, "58:9c:fc:") {
			return mac
		}
		return "00-00-5e-00-53-01" // for documentation, RFC 7042; with dashes, so that it is no address of the next kind
	})
	text = aSixth.ReplaceAllStringFunc(text, func(a string) string {
		if strings.HasPrefix(a, "58:9c:fc:") || aTime.MatchString(a) {
			return a
		}
		return "2001-db8--1"
	})
	text = strings.NewReplacer("00-00-5e-00-53-01", "00:00:5e:00:53:01", "2001-db8--1", "2001:db8::1").Replace(text)
	return anAddress.ReplaceAllStringFunc(text, func(a string) string {
		if a == recordAddr || strings.HasPrefix(a, "127.") {
			return a
		}
		return "198.51.100.1"
	})
}

// ours keeps the lines of a list that are the recording's, and of names that stand in one line those that are. A variable of the
// kernel is no list.
func ours(command []string, text string) string {
	if command[0] == "sysctl" {
		return text
	}
	if slices.Equal(command, []string{"ifconfig", "-l"}) {
		kept := slices.DeleteFunc(strings.Fields(text), func(w string) bool { return !isOurs(w) && w != "lo0" })
		return strings.Join(kept, " ") + "\n"
	}
	var out strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "\t") { // what is indented goes on about the line before
			inside = isOurs(line) || strings.HasPrefix(line, "Status: ")
		}
		if inside {
			out.WriteString(line)
		}
	}
	return out.String()
}

func isOurs(text string) bool {
	for _, mark := range []string{recordJail, recordDataset + "/doctor", "epair"} {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

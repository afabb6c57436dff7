package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxListed is how many paths of a kind a report names.
const maxListed = 20

// VerifyOptions say how thoroughly to look.
type VerifyOptions struct {
	// Quick reads only files that the filesystem says have been touched since the template was built, instead of all, and
	// none where it says what it said when a quick look found all of them unchanged.
	// It finds everything except what was written to the disk behind the filesystem's back.
	Quick bool
}

// Report is what Verify found. The lists name at most 20 paths each, in order; the counts count all.
type Report struct {
	Template     string   `json:"template"`
	Digest       string   `json:"digest"` // what it should be
	Quick        bool     `json:"quick"`
	Files        int      `json:"files"` // how many were looked at
	Read         int      `json:"read"`  // how many of them were read
	Changed      []Change `json:"changed,omitempty"`
	Added        []string `json:"added,omitempty"`
	Removed      []string `json:"removed,omitempty"`
	ChangedCount int      `json:"changed_count"`
	AddedCount   int      `json:"added_count"`
	RemovedCount int      `json:"removed_count"`
	Credentials  []string `json:"credentials,omitempty"`
	// Lacks are packages that it would be given today. It is as it was built without them.
	Lacks []string `json:"lacks,omitempty"`
	// Again is [Template.Again].
	Again string `json:"-"`
}

// Change is one path that is not as it was.
type Change struct {
	Path string `json:"path"`
	// What lists what changed: "content", "mode", "owner", "type", "link", "attributes", the most telling first.
	What []string `json:"what"`
}

// OK reports that the template is as it was built, and free of credentials.
func (r Report) OK() bool {
	return r.ChangedCount == 0 && r.AddedCount == 0 && r.RemovedCount == 0 && len(r.Credentials) == 0
}

// Verify compares a template with what it was when it was built. The code is template_missing when it is not there, and
// template_changed when it is not the same or has a credential in it; the report is then complete as well.
func (s *Store) Verify(ctx context.Context, name string, options VerifyOptions) (Report, error) {
	t, err := s.Get(ctx, name)
	if err != nil {
		return Report{}, err
	}
	if err := s.trees.Settle(t.RootFS()); err != nil {
		return Report{}, fmt.Errorf("verify template %s: %w", name, err)
	}
	report := Report{Template: name, Digest: t.Digest, Quick: options.Quick, Lacks: t.Lacks(), Again: t.Again()}
	got, err := statTree(ctx, t.RootFS())
	if err != nil {
		return report, fmt.Errorf("verify template %s: %w", name, err)
	}
	report.Files = len(got)
	now := stateOf(t, got)
	if options.Quick {
		if last, err := os.ReadFile(filepath.Join(t.Dir, verifiedName)); err == nil && string(last) == now {
			return report, nil
		}
	}
	hint := t.buildAgain()
	want, err := readManifest(filepath.Join(t.Dir, manifestName))
	if err != nil {
		return report, problem.Wrap(err, problem.TemplateChanged, hint, "the manifest of template %s cannot be read", name)
	}
	if digestOf(want) != t.Digest {
		return report, problem.New(problem.TemplateChanged, hint, "the manifest of template %s has not the digest of the template", name)
	}
	pairs := match(want, got)
	if err := readPairs(ctx, t.RootFS(), want, got, pairs, options.Quick, &report); err != nil {
		return report, fmt.Errorf("verify template %s: %w", name, err)
	}
	report.compare(want, got, pairs)
	if report.Credentials, err = credentialsOf(t.RootFS(), got); err != nil {
		return report, fmt.Errorf("verify template %s: %w", name, err)
	}
	if report.OK() {
		if options.Quick {
			keepState(t.Dir, now)
		}
		return report, nil
	}
	return report, problem.New(problem.TemplateChanged, hint, "template %s is not as it was built: %s", name, report.Summary()).With("report", report)
}

// stateOf changes whenever a file of a template is touched, the template is built anew, or what counts as a credential changes.
func stateOf(t Template, entries []entry) string {
	hash := sha256.New()
	fmt.Fprintln(hash, t.Digest, credentialNames(), credentialsInHome(), credentialFolders(), credentialContents())
	var line []byte
	for i := range entries {
		line = append(entries[i].appendLine(line[:0]), '\n')
		hash.Write(line)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// keepState lets the next quick look at an unchanged template end early. It does not matter whether that can be written.
func keepState(dir, state string) {
	_ = keyfile.Write(filepath.Join(dir, verifiedName), 0o600, []byte(state), os.Rename)
}

// Summary is one line about the differences.
func (r Report) Summary() string {
	var parts []string
	add := func(count int, what, first string) {
		switch {
		case count == 1:
			parts = append(parts, first+" was "+what)
		case count > 1:
			parts = append(parts, fmt.Sprintf("%d files were %s, the first is %s", count, what, first))
		}
	}
	if r.ChangedCount > 0 {
		add(r.ChangedCount, "changed", fmt.Sprintf("%s (%s)", r.Changed[0].Path, strings.Join(r.Changed[0].What, ", ")))
	}
	if r.AddedCount > 0 {
		add(r.AddedCount, "added", r.Added[0])
	}
	if r.RemovedCount > 0 {
		add(r.RemovedCount, "removed", r.Removed[0])
	}
	if len(r.Credentials) > 0 {
		parts = append(parts, "it has credentials in it: "+strings.Join(r.Credentials, ", "))
	}
	if len(parts) == 0 {
		return "nothing has changed"
	}
	return strings.Join(parts, "; ")
}

// pair is an entry of the manifest and the one of the tree with the same path; -1 where there is none.
type pair struct{ want, got int }

// match merges two ordered lists.
func match(want, got []entry) []pair {
	pairs := make([]pair, 0, max(len(want), len(got)))
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case j == len(got) || i < len(want) && want[i].path < got[j].path:
			pairs = append(pairs, pair{i, -1})
			i++
		case i == len(want) || got[j].path < want[i].path:
			pairs = append(pairs, pair{-1, j})
			j++
		default:
			pairs = append(pairs, pair{i, j})
			i++
			j++
		}
	}
	return pairs
}

// readPairs reads the files of the tree whose content has to be known. A quick look believes the filesystem about those
// that were not touched.
func readPairs(ctx context.Context, rootfs string, want, got []entry, pairs []pair, quick bool, report *Report) error {
	var which []int
	for _, p := range pairs {
		switch {
		case p.want < 0 || p.got < 0:
		case quick && want[p.want].stamp == got[p.got].stamp:
			got[p.got].sum, got[p.got].attr = want[p.want].sum, want[p.want].attr
		default:
			which = append(which, p.got)
		}
	}
	report.Read = len(which)
	return readContents(ctx, rootfs, got, which, nil)
}

// compare writes down the differences.
func (r *Report) compare(want, got []entry, pairs []pair) {
	for _, p := range pairs {
		switch {
		case p.got < 0:
			r.RemovedCount++
			r.Removed = appendBounded(r.Removed, shownPath(want[p.want].path))
		case p.want < 0:
			r.AddedCount++
			r.Added = appendBounded(r.Added, shownPath(got[p.got].path))
		default:
			if what := difference(&want[p.want], &got[p.got]); len(what) > 0 {
				r.ChangedCount++
				r.Changed = appendBounded(r.Changed, Change{Path: shownPath(got[p.got].path), What: what})
			}
		}
	}
}

func difference(want, got *entry) []string {
	var what []string
	add := func(differs bool, name string) {
		if differs {
			what = append(what, name)
		}
	}
	add(want.kind != got.kind, "type")
	add(want.kind == got.kind && (want.sum != got.sum || want.size != got.size), "content")
	add(want.link != got.link, "link")
	add(want.mode != got.mode, "mode")
	add(want.uid != got.uid || want.gid != got.gid, "owner")
	add(want.attr != got.attr, "attributes")
	return what
}

func appendBounded[T any](list []T, item T) []T {
	if len(list) >= maxListed {
		return list
	}
	return append(list, item)
}

// shownPath is a path as it is inside a jail.
func shownPath(path string) string {
	if path == "." {
		return "/"
	}
	return "/" + path
}

package template

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// otherFont says whether a font of the Noto packages is left out of templates: faces of Latin letters, which would change what pages
// look like that name no font, second designs of a script, sign writing, and all weights but two.
func otherFont(name string) bool {
	for _, of := range [...]struct {
		pattern string
		kept    bool
	}{
		{"NotoSansDisplay-*", false}, {"NotoSansMono*", false}, {"NotoSans*UI-*", false}, {"NotoSansSignWriting-*", false},
		{"NotoSansTifinagh[A-Z]*", false}, {"NotoSansAdlamUnjoined-*", false},
		{"NotoSans[A-Z]*-Regular.*", true}, {"NotoSans[A-Z]*-Bold.*", true}, {"NotoSerifTibetan-*", true}, // there is no other
		{"NotoColorEmoji*", true}, {"NotoEmoji*", true},
	} {
		if match, _ := path.Match(of.pattern, name); match { // the patterns are well-formed
			return !of.kept
		}
	}
	return true
}

// trimFonts removes the fonts that are not wanted from what packages have brought.
func (b *build) trimFonts(root *os.Root) error {
	if b.source.kind != sourceDebian && b.source.kind != sourceBase {
		return nil
	}
	names, err := fs.Glob(root.FS(), path.Join(b.system.noto, "Noto*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if otherFont(path.Base(name)) {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// fontsTime is how long the cache of fonts may take.
const fontsTime = 5 * time.Minute

// warmFonts makes the cache of fonts, without which the first page of every jail takes a second longer. The program
// comes out of the tree, so it runs as the jail's user.
func (b *build) warmFonts(ctx context.Context, root *os.Root) error {
	program, cache := b.system.fontCache, b.system.fonts
	if info, err := root.Stat(program[1:]); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if err := realFolder(root, cache); err != nil {
		return err
	}
	if err := emptyFolder(root, cache); err != nil {
		return err
	}
	if err := root.Chown(cache, jailUser, jailUser); err != nil {
		return err
	}
	_, runErr := b.inTree(ctx, fontsTime, program, "--system-only", "--force")
	if ctx.Err() != nil {
		return runErr
	}
	// A font that fc-cache cannot read is no reason to refuse a tree; without a cache pages are only slower.
	dir := filepath.Join(b.rootfs, cache)
	return filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.Type().IsRegular() && !entry.IsDir() {
			return os.Remove(name)
		}
		if err := os.Lchown(name, 0, 0); err != nil {
			return err
		}
		if entry.IsDir() {
			return os.Chmod(name, 0o755)
		}
		return os.Chmod(name, 0o644)
	})
}

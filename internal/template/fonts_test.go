package template

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFontsThatWouldChangeLatinPagesAreLeftOut(t *testing.T) {
	kept := []string{"NotoColorEmoji.ttf", "NotoSansArmenian-Bold.ttf", "NotoSansKhmer-Regular.ttf", "NotoSansTifinagh-Regular.ttf", "NotoSerifTibetan-Regular.ttf"}
	left := []string{
		"NotoMono-Regular.ttf", "NotoSans-Regular.ttf", "NotoSansDisplay-Bold.ttf", "NotoSansKhmer-Black.ttf", "NotoSansKhmerUI-Regular.ttf",
		"NotoSansSignWriting-Regular.ttf", "NotoSansTifinaghAir-Regular.ttf", "NotoSerif-Regular.ttf", "NotoSerifKhmer-Regular.ttf",
	}
	for _, goos := range []string{"linux", freebsd} {
		for kind, want := range map[string][]string{sourceDebian: kept, sourceBase: kept, sourceDir: slices.Concat(kept, left)} {
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			b := &build{system: systemOf(goos), source: source{kind: kind}}
			if err := root.MkdirAll(b.system.noto, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range slices.Concat(kept, left) {
				if err := root.WriteFile(filepath.Join(b.system.noto, name), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.trimFonts(root); err != nil {
				t.Fatal(err)
			}
			var got []string
			entries, err := os.ReadDir(filepath.Join(dir, b.system.noto))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				got = append(got, e.Name())
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s: %v", goos, kind, got)
			}
		}
	}
}

func TestTemplatesSayWhatAnEarlierVersionHasLeftOut(t *testing.T) {
	all := map[string]string{}
	for _, name := range slices.Concat(Recipes()["browser"].Packages, Recipes()["browser"].FreeBSD) {
		all[name] = "1"
	}
	for _, source := range []string{"debian:bookworm", "base.txz:15.0-RELEASE sha256:1", "oci:image@sha256:1"} {
		b := Template{Name: "browser", Source: source, Packages: all}
		if lacks := b.Lacks(); lacks != nil {
			t.Errorf("%s: a whole one lacks %v", source, lacks)
		}
		for name := range all {
			part := map[string]string{}
			for other := range all {
				if other != name {
					part[other] = "1"
				}
			}
			b.Packages = part
			recipe := map[string][]string{"debian:bookworm": Recipes()["browser"].Packages, "base.txz:15.0-RELEASE sha256:1": Recipes()["browser"].FreeBSD}
			if got, want := b.Lacks(), slices.Contains(recipe[source], name); slices.Equal(got, []string{name}) != want {
				t.Errorf("%s without %s lacks %v", source, name, got)
			}
		}
	}
}

func TestATemplateFromPackagesIsBuiltAgainWithItsExtras(t *testing.T) {
	node := map[string]string{"nodejs": "18.20.4", "curl": "7.88"}
	for _, c := range []struct {
		is   Template
		want string
	}{
		{Template{Name: "browser", Source: "debian:bookworm"}, "sudo clawjail template build browser --replace"},
		{Template{Name: "clawbot", Source: "debian:bookworm", Packages: node}, "sudo clawjail template build clawbot --replace --with node"},
		{Template{Name: "browser", Source: "base.txz:15.0-RELEASE sha256:ab"}, "sudo clawjail template build browser --replace"},
		{Template{Name: "mine", Source: "dir:/srv/rootfs", Packages: node}, ""},
	} {
		if got := c.is.Again(); got != c.want {
			t.Errorf("%s of %s: %q, want %q", c.is.Name, c.is.Source, got, c.want)
		}
	}
}

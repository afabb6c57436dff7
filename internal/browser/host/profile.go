package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// painted is what was written into the profile: what differs from it is the user's own choice, and is left alone.
type painted struct {
	Name  string      `json:"name"`
	Color json.Number `json:"color"`
}

// maxPreferences bounds the files that are read. They have a few hundred kilobytes.
const maxPreferences = 32 << 20

// paint gives the profile its name and colour, where the user has not changed them. No browser may be running.
func (k *Keeper) paint() error {
	rgb, _ := k.settings.RGB() // the settings were validated
	want := painted{Name: ProfileName, Color: json.Number(fmt.Sprint(int32(0xff000000 | rgb)))}
	marker := filepath.Join(k.dir, "profile.json")
	var wrote painted
	if data, err := os.ReadFile(marker); err == nil {
		if err := json.Unmarshal(data, &wrote); err != nil {
			return fmt.Errorf("read %s: %w", marker, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", marker, err)
	}
	if wrote == want {
		return nil // nothing of ours is new, so what differs is the user's
	}
	preferences := filepath.Join(k.Profile(), "Default", "Preferences")
	state := filepath.Join(k.Profile(), "Local State")
	now, err := readTree(preferences)
	if err != nil {
		return err
	}
	local, err := readTree(state)
	if err != nil {
		return err
	}
	// Before the browser's first start there is nothing that a user could have changed.
	fresh := len(now) == 0
	if old, _ := now.get("profile", "name").(string); fresh || wrote.Name != "" && old == wrote.Name {
		now.set(want.Name, "profile", "name")
		now.set(false, "profile", "using_default_name")
		local.set(want.Name, "profile", "info_cache", "Default", "name")
		local.set(false, "profile", "info_cache", "Default", "is_using_default_name")
	}
	if old, _ := now.get("browser", "theme", "user_color2").(json.Number); fresh || wrote.Color != "" && old == wrote.Color {
		now.set(want.Color, "browser", "theme", "user_color2")
		now.set(1, "browser", "theme", "color_variant2")
		now.set("user_color_theme_id", "extensions", "theme", "id")
		local.set(want.Color, "profile", "info_cache", "Default", "profile_color_seed")
	}
	if err := private(filepath.Dir(preferences)); err != nil {
		return err
	}
	if err := errors.Join(now.write(preferences), local.write(state)); err != nil {
		return err
	}
	data, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("keep what was painted: %w", err)
	}
	return writeWhole(marker, data)
}

// tree is a JSON object whose numbers stay as they are written.
type tree map[string]any

// readTree reads a file; one that is not there is empty.
func readTree(path string) (tree, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return tree{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Size() > maxPreferences {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxPreferences)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	out := tree{}
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return out, nil
}

func (t tree) get(path ...string) any {
	at := map[string]any(t)
	for _, key := range path[:len(path)-1] {
		next, ok := at[key].(map[string]any)
		if !ok {
			return nil
		}
		at = next
	}
	return at[path[len(path)-1]]
}

func (t tree) set(value any, path ...string) {
	at := map[string]any(t)
	for _, key := range path[:len(path)-1] {
		next, ok := at[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[key] = next
		}
		at = next
	}
	at[path[len(path)-1]] = value
}

func (t tree) write(path string) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(t); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return writeWhole(path, []byte(b.String()))
}

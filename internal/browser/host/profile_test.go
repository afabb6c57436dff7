package host

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/browser/host/hosttest"
)

// orange is #FF4500 as Chromium keeps it: opaque, as a signed number.
const orange = "-47872"

func look(t *testing.T, k *Keeper) (name, color, seed string) {
	t.Helper()
	preferences, err := readTree(filepath.Join(k.Profile(), "Default", "Preferences"))
	if err != nil {
		t.Fatal(err)
	}
	state, err := readTree(filepath.Join(k.Profile(), "Local State"))
	if err != nil {
		t.Fatal(err)
	}
	color = string(colorOf(preferences, frameTheme))
	if color == "" {
		color = string(colorOf(preferences, paleTheme))
	}
	return fmt.Sprint(preferences.get("profile", "name")), color, fmt.Sprint(state.get("profile", "info_cache", "Default", "profile_color_seed"))
}

func TestTheProfileLooksLikeNoOtherUntilItsUserChangesIt(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	o := options(filepath.Join(home, "data"))
	k := started(t, o)
	restart := func() {
		t.Helper()
		if _, err := k.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	// The browser has written its own files by now. TestTheHostBrowserIsSeenBesideThePersonsOwn looks at its window.
	if name, color, _ := look(t, k); name != "clawd" || color != orange {
		t.Errorf("the name is %s, the colour %s", name, color)
	}

	// The user has other wishes, as the browser's own settings write them.
	change(t, k, "Ada", -16776961)
	if err := k.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	restart()
	if name, color, seed := look(t, k); name != "Ada" || color != "-16776961" || seed != "-16776961" {
		t.Errorf("after the user's change: the name is %s, the colour %s, and shown is %s", name, color, seed)
	}
	// They hold also when the settings name another colour.
	k.settings.Color = "#00FF00"
	if err := k.paint(); err != nil {
		t.Fatal(err)
	}
	if name, color, _ := look(t, k); name != "Ada" || color != "-16776961" {
		t.Errorf("after another setting: the name is %s and the colour %s", name, color)
	}
}

func change(t *testing.T, k *Keeper, name string, color int) {
	t.Helper()
	path := filepath.Join(k.Profile(), "Default", "Preferences")
	preferences, err := readTree(path)
	if err != nil {
		t.Fatal(err)
	}
	preferences.set(name, "profile", "name")
	preferences.set(color, "browser", "theme", "user_color2")
	preferences.set(paleTheme, "extensions", "theme", "id")
	if err := preferences.write(path); err != nil {
		t.Fatal(err)
	}
}

func TestAProfileThatWasPalePaintsItsFrame(t *testing.T) {
	k := keeper(t, options(t.TempDir()))
	if err := k.paint(); err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(k.dir, "profile.json")
	for color, want := range map[int]string{-47872: orange, -16776961: "-16776961"} { // ours, and the user's
		change(t, k, "clawd", color)
		if err := os.WriteFile(marker, []byte(`{"name":"clawd","color":`+orange+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := k.paint(); err != nil {
			t.Fatal(err)
		}
		preferences, err := readTree(filepath.Join(k.Profile(), "Default", "Preferences"))
		if err != nil {
			t.Fatal(err)
		}
		ours := string(colorOf(preferences, frameTheme)) == orange
		if _, now, _ := look(t, k); now != want || ours != (want == orange) {
			t.Errorf("a pale profile of %d: %s, painted %v", color, now, ours)
		}
	}
}

func TestANewSettingRepaintsWhatTheUserLeftAlone(t *testing.T) {
	k := keeper(t, options(t.TempDir()))
	paint := func(color string) {
		t.Helper()
		k.settings.Color = color
		if err := k.paint(); err != nil {
			t.Fatal(err)
		}
	}
	paint("#FF4500")
	// Preferences of the browser there, large numbers too, stay as they are.
	path := filepath.Join(k.Profile(), "Default", "Preferences")
	preferences, err := readTree(path)
	if err != nil {
		t.Fatal(err)
	}
	preferences.set(json.Number("13439747762336158123"), "large")
	if err := preferences.write(path); err != nil {
		t.Fatal(err)
	}
	paint("#000001")
	if _, color, _ := look(t, k); color != "-16777215" {
		t.Errorf("the colour is %s", color)
	}
	if preferences, err = readTree(path); err != nil || fmt.Sprint(preferences.get("large")) != "13439747762336158123" {
		t.Errorf("%v, %v", preferences.get("large"), err)
	}

	// Files that are none of ours are left alone, and are no reason not to start.
	if err := os.WriteFile(path, []byte("not JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.settings.Color = "#000002"
	if err := k.paint(); err == nil {
		t.Error("a broken file is no error")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "not JSON" {
		t.Errorf("%s, %v", data, err)
	}
}

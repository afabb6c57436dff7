package helper

import "testing"

func TestTheHelperIsThatOfTheProgramsInstallation(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/bin/clawjail":        "/usr/libexec/clawjail-spawn",
		"/usr/local/bin/clawjail":  Path,
		"/opt/claw/bin/clawjail":   "/opt/claw/libexec/clawjail-spawn",
		"/tmp/build/clawjail.test": Path,
		"bin/clawjail":             Path,
		"":                         Path,
	} {
		if got := Beside(program); got != want {
			t.Errorf("the helper of %q is %s, want %s", program, got, want)
		}
	}
}

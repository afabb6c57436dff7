package helper

import "path/filepath"

// Beside is where the helper is that was installed with a program: PREFIX/libexec for PREFIX/bin/clawjail, as packages have another
// prefix than what is installed from source. A program that is not in a folder "bin" has Path. Nothing is looked up on the disk:
// whether the helper there can be trusted is asked before it is used.
func Beside(program string) string {
	bin := filepath.Dir(program)
	if !filepath.IsAbs(program) || filepath.Base(bin) != "bin" {
		return Path
	}
	return filepath.Join(filepath.Dir(bin), "libexec", "clawjail-spawn")
}

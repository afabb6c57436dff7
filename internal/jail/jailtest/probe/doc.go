// Command probe is the program that tests run inside a jail to see what a jail can do there.
//
// It is static, so that a root file system of a shell and this one file is enough. As "probe serve" it answers one
// JSON line for every line it reads: the name of a probe and its arguments, separated by tabs. As "probe NAME ARG…" it
// answers once. Called as "cp" it is the cp -R that a jail's launch script needs.
//
// A probe reports what the kernel answered and never decides whether that is right: the tests do.
package main

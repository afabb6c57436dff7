// Package archtest holds tests about the code itself: which way imports point, what the binary may link, how long a file
// may be, what the files that ship must say. There is nothing in it to import.
//
// A rule stands in a table together with its reason, and with an example that breaks it; a rule that does not object
// to its own example fails.
package archtest

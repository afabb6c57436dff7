// Package packagingtest tries the packages: it builds them, and installs, upgrades, removes and purges them with the package
// managers, in a root file system of their own.
package packagingtest

//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// makeSocket opens a socket of "family type protocol".
func makeSocket(args []string) (answer, error) {
	fd, err := unix.Socket(number(args[0]), number(args[1]), number(args[2]))
	if err != nil {
		return answer{}, err
	}
	return answer{}, unix.Close(fd)
}

// onThread runs f on a thread that is thrown away, so that what f changes of its thread does not stay.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// unshareFlags asks for new namespaces in a process of its own: a process of several threads may not leave its user
// namespace, whatever the filter says.
func unshareFlags(args []string) (answer, error) {
	flags := number(args[0])
	return child(&syscall.SysProcAttr{Unshareflags: uintptr(flags)})
}

// cloneFlags starts a child in new namespaces.
func cloneFlags(args []string) (answer, error) {
	return child(&syscall.SysProcAttr{Cloneflags: uintptr(number(args[0]))})
}

// child starts this program with the attributes, to end at once.
func child(attr *syscall.SysProcAttr) (answer, error) {
	p, err := os.StartProcess("/proc/self/exe", []string{"probe", "echo"}, &os.ProcAttr{Sys: attr})
	if err != nil {
		return answer{}, err
	}
	state, err := p.Wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("the child ended with %s", state)
	}
	return answer{}, err
}

// rawCall makes one system call, by its number and up to six numeric arguments.
func rawCall(args []string) (answer, error) {
	var n [7]uintptr
	for i, a := range args {
		n[i] = uintptr(number(a))
	}
	var a answer
	err := onThread(func() error {
		r, _, errno := unix.Syscall6(n[0], n[1], n[2], n[3], n[4], n[5], n[6])
		a.Number = int64(r)
		if errno != 0 {
			return errno
		}
		return nil
	})
	return a, err
}

// lowerLimit makes a limit of this process (getrlimit(2)) smaller by one, and reports what it is then.
func lowerLimit(args []string) (answer, error) {
	var now unix.Rlimit
	resource := number(args[0])
	if err := unix.Prlimit(0, resource, nil, &now); err != nil {
		return answer{}, err
	}
	now.Cur--
	if err := unix.Prlimit(0, resource, &now, nil); err != nil {
		return answer{}, err
	}
	err := unix.Prlimit(0, resource, nil, &now)
	return answer{Number: int64(now.Cur)}, err
}

// crash has a program crash. The number is 1 when the kernel wrote its memory to somewhere.
func crash([]string) (answer, error) {
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "kill -ABRT $$"}, &os.ProcAttr{})
	if err != nil {
		return answer{}, err
	}
	state, err := p.Wait()
	if err != nil {
		return answer{}, err
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGABRT {
		return answer{}, fmt.Errorf("the program ended with %s", state)
	}
	if status.CoreDump() {
		return answer{Number: 1}, nil
	}
	return answer{}, nil
}

// eatMemory takes the given number of bytes and touches all of them.
func eatMemory(args []string) (answer, error) {
	size := number(args[0])
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < size; i += os.Getpagesize() {
		m[i] = 1
	}
	return answer{Number: int64(size)}, unix.Munmap(m)
}

// forkMany starts up to the given number of children that stay, and reports how many there were before the first refusal. They
// are ended again.
func forkMany(args []string) (a answer, err error) {
	stdin, keep, err := os.Pipe() // nothing is ever written: the children wait
	if err != nil {
		return a, err
	}
	var started []*os.Process
	defer func() {
		for _, p := range started {
			err = errors.Join(err, p.Kill())
		}
		for _, p := range started {
			_, werr := p.Wait()
			err = errors.Join(err, werr)
		}
		err = errors.Join(err, stdin.Close(), keep.Close())
	}()
	for range number(args[0]) {
		p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "read x"}, &os.ProcAttr{Files: []*os.File{stdin}})
		if err != nil {
			return a, err
		}
		started = append(started, p)
		a.Number++
	}
	return a, nil
}

// within runs another probe in a child in new namespaces: the flags, the probe, its arguments.
func within(args []string) (answer, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return answer{}, err
	}
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	p, err := os.StartProcess("/proc/self/exe", append([]string{"probe"}, args[1:]...), &os.ProcAttr{
		Files: []*os.File{nil, w, nil},
		Sys:   &syscall.SysProcAttr{Cloneflags: uintptr(number(args[0])), UidMappings: id}})
	err = errors.Join(err, w.Close())
	if err != nil {
		return answer{}, errors.Join(err, r.Close())
	}
	var a answer
	err = json.NewDecoder(r).Decode(&a)
	_, werr := p.Wait()
	if err = errors.Join(err, werr, r.Close()); err == nil && !a.OK {
		err = refusal(a)
	}
	return a, err
}

// refusal is the error that a child's answer tells of.
func refusal(a answer) error {
	for n := syscall.Errno(1); n < 200; n++ {
		if a.Errno != "" && unix.ErrnoName(n) == a.Errno {
			return n
		}
	}
	return errors.New(a.Error)
}

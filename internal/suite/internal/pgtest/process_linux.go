// Code generated from store/pgstore/internal/pgtest by go generate ./internal/copies; DO NOT EDIT.

package pgtest

import "syscall"

// attributes are those of a process of this user, which does not outlive this one.
func attributes(of *id) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if of != nil {
		attr.Credential = &syscall.Credential{Uid: of.Uid, Gid: of.Gid}
	}
	return attr
}

// Code generated from store/pgstore/internal/pgtest by go generate ./internal/copies; DO NOT EDIT.

//go:build !linux

package pgtest

import "syscall"

func attributes(*id) *syscall.SysProcAttr { return nil }

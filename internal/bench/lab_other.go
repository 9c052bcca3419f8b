//go:build !linux

package main

import (
	"context"
	"errors"
)

// roleVariable is never set here.
const roleVariable = "CAROM_BENCH_ROLE"

var errLinux = errors.New("-lab needs Linux's network namespaces")

func play(context.Context, string) int { return 1 }

func runLab(context.Context, *options) (*report, error) { return nil, errLinux }

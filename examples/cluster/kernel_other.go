//go:build !linux

package main

import (
	"context"
	"errors"
)

// roleVariable is not used on this system.
const roleVariable = "CAROM_CLUSTER_ROLE"

var errLinux = errors.New("network namespaces are Linux's")

func kernelAvailable() error { return errLinux }

func newKernelCluster(context.Context, options) (cluster, error) { return nil, errLinux }

func play(context.Context, string) int { return 2 }

package sockmeter

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel,bpfeb -type counter -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" sockmeter bpf/sockmeter.c

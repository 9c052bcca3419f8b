// Package sockdiag asks the Linux kernel about single TCP sockets, by netlink
// (sock_diag(7)). It needs no privileges. Elsewhere it is empty.
package sockdiag

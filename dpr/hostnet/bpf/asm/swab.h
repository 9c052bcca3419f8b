/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The kernel headers include this file, which distributions keep in a place that
 * depends on the machine. For BPF it is the same everywhere. */

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The kernel headers include this file, which distributions keep in a place that
 * depends on the machine. For BPF it is the same everywhere. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <linux/byteorder/little_endian.h>
#else
#include <linux/byteorder/big_endian.h>
#endif

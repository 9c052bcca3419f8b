#include "textflag.h"

// func prefetch(base unsafe.Pointer, lines []uint32)
TEXT ·prefetch(SB), NOSPLIT, $0-32
	MOVD base+0(FP), R0
	MOVD lines_base+8(FP), R1
	MOVD lines_len+16(FP), R2
	ADD  R2<<2, R1, R2
	B    test
next:
	MOVWU.P 4(R1), R3
	ADD  R3<<6, R0, R3
	PRFM (R3), PLDL1KEEP
test:
	CMP  R2, R1
	BLO  next
	RET

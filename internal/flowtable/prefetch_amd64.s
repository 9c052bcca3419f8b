#include "textflag.h"

// func prefetch(base unsafe.Pointer, lines []uint32)
TEXT ·prefetch(SB), NOSPLIT, $0-32
	MOVQ base+0(FP), DI
	MOVQ lines_base+8(FP), SI
	MOVQ lines_len+16(FP), CX
	LEAQ (SI)(CX*4), CX
	JMP  test
next:
	MOVL (SI), AX
	SHLQ $6, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ $4, SI
test:
	CMPQ SI, CX
	JB   next
	RET

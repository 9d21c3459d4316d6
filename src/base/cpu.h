/* CPU features of this machine. Queried when a pool is created; not cached. */
#ifndef QUIRE_BASE_CPU_H
#define QUIRE_BASE_CPU_H

enum {
    QUIRE_CPU_NEON = 1 << 0,
    QUIRE_CPU_DOTPROD = 1 << 1,
    QUIRE_CPU_I8MM = 1 << 2,
    QUIRE_CPU_FP16 = 1 << 3, /* arithmetic on fp16 vectors */
    QUIRE_CPU_AVX2 = 1 << 4, /* with FMA and F16C */
    QUIRE_CPU_AVX512_VNNI = 1 << 5,
    QUIRE_CPU_BF16 = 1 << 6,     /* BFMMLA */
    QUIRE_CPU_FP16_FML = 1 << 7, /* FMLAL */
    QUIRE_CPU_AMX = 1 << 8,      /* int8 tiles that this process may use, with AVX512_FP16, GFNI */
    QUIRE_CPU_AVX512 = 1 << 9,   /* F, BW, DQ, VL */
    QUIRE_CPU_AVX_VNNI = 1 << 10 /* VPDPBUSD of 256 bits */
};

unsigned quire__cpu_features(void);

#endif

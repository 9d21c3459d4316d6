/* The order in which query-aware rounding takes the channels of K, from the CPU library's own
 * source (src/codec/rope_pairs.c is compiled into this library). */
#ifndef QUIRE_CUDA_ROPE_H
#define QUIRE_CUDA_ROPE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* channels (dim): pair after pair; angles (dim / 2): radians per position. rope NULL: nothing
 * turns. E_INVALID. */
quire_status quire_cuda__rope_pairs(const quire_rope *rope, int32_t dim, uint16_t *channels,
                                    double *angles);

/* In fail.cu. */
quire_status quire_cuda__fail_text(quire_status status, const char *text);

#ifdef __cplusplus
}
#endif
#endif

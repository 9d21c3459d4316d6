/* A page record of any codecs and head sizes: what the kernel for all pairs reads. */
#ifndef QUIRE_CUDA_RECORD_ANY_H
#define QUIRE_CUDA_RECORD_ANY_H

#include "record.h"

namespace quire_cuda {

enum class Family : int { raw, channel, uniform, book, prod, affine, block };

/* One side of a record. */
struct AnySide {
    bool is_k;
    Family family;
    int dim, bits;            /* of the code section */
    int group;                /* channels that share parameters (affine, block) */
    int mixed;                /* km: blocks of 16 places with codes of two widths */
    quire_type type;          /* of raw elements, and of affine's parameters */
    int codes, signs, params; /* where these sections start */
    int end;                  /* of the last one */

    __host__ __device__ bool is_rotated() const {
        return family == Family::uniform || family == Family::book || family == Family::prod;
    }
};

struct AnyRecord {
    AnySide k, v;
    int bytes;
};

/* False if a codec is unknown, is not for its side, or does not divide the head size. */
bool any_record(quire_pair pair, int k_dim, int v_dim, quire_type raw, AnyRecord *record);

} // namespace quire_cuda

#endif

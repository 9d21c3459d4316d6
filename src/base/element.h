/* Elements of the three raw types, moved through fp32. */
#ifndef QUIRE_BASE_ELEMENT_H
#define QUIRE_BASE_ELEMENT_H

#include <string.h>

#include "base/half.h"
#include "quire.h"

static inline size_t quire__type_bytes(quire_type type) { return type == QUIRE_F32 ? 4 : 2; }

static inline bool quire__type_valid(quire_type type) {
    return type == QUIRE_F32 || type == QUIRE_F16 || type == QUIRE_BF16;
}

static inline float quire__load(quire_type type, const void *at, size_t i) {
    if (type == QUIRE_F32) {
        float x;
        memcpy(&x, (const char *)at + 4 * i, sizeof x);
        return x;
    }
    uint16_t h;
    memcpy(&h, (const char *)at + 2 * i, sizeof h);
    return type == QUIRE_F16 ? quire__f16_to_f32(h) : quire__bf16_to_f32(h);
}

static inline void quire__store(quire_type type, void *at, size_t i, float x) {
    if (type == QUIRE_F32) {
        memcpy((char *)at + 4 * i, &x, sizeof x);
        return;
    }
    const uint16_t h = type == QUIRE_F16 ? quire__f32_to_f16(x) : quire__f32_to_bf16(x);
    memcpy((char *)at + 2 * i, &h, sizeof h);
}

static inline void quire__load_row(quire_type type, const void *at, size_t n, float *row /* (n) */) {
    if (type == QUIRE_F32)
        memcpy(row, at, n * sizeof *row);
    else
        for (size_t i = 0; i < n; i++)
            row[i] = quire__load(type, at, i);
}

static inline void quire__store_row(quire_type type, void *at, size_t n, const float *row /* (n) */) {
    for (size_t i = 0; i < n; i++)
        quire__store(type, at, i, row[i]);
}

static inline bool quire__all_finite(quire_type type, const void *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!quire__finite(quire__load(type, at, i)))
            return false;
    return true;
}

#endif

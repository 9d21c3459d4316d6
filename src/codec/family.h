/* The interface of a codec family, private to src/codec. Codes are bit patterns, one byte each,
 * (64, D) in natural order; parameters are written straight into the record. `encode` sees a record
 * that is zero. */
#ifndef QUIRE_CODEC_FAMILY_H
#define QUIRE_CODEC_FAMILY_H

#include <math.h>

#include "base/real.h"
#include "codec/codec.h"

enum { T = QUIRE_PAGE_TOKENS };

typedef struct quire_family_ops {
    const char *name;
    const char *summary;
    void (*encode)(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                   uint8_t *record);
    void (*decode)(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                   float *rows);
} quire_family_ops;

extern const quire_family_ops quire__channel_ops, quire__uniform_ops, quire__book_ops,
    quire__prod_ops, quire__affine_ops, quire__block_ops;

/* Packs a side's codes into its section of a record, and unpacks them. */
void quire__side_pack(const quire_side_format *side, const uint8_t *codes, uint8_t *record);
void quire__side_unpack(const quire_side_format *side, const uint8_t *record, uint8_t *codes);

/* channel, uniform: codes of channel d; 8-bit ones are signed, and -128 is never used. */
static inline int quire__lowest_code(const quire_side_format *side) {
    return side->bits == 8 ? -127 : 0;
}
static inline int quire__highest_code(const quire_side_format *side, int d) {
    return side->bits == 8 ? 127 : (1 << quire__code_bits(side, d)) - 1;
}

static inline uint8_t quire__nearest_code(const quire_side_format *side, int d, float x) {
    const int lowest = quire__lowest_code(side), highest = quire__highest_code(side, d);
    return (uint8_t)(x <= (float)lowest ? lowest : x >= (float)highest ? highest : quire__round(x));
}

static inline float quire__signed_code(const quire_side_format *side, uint8_t code) {
    return side->bits == 8 ? (float)(int8_t)code : (float)code;
}

/* affine: whether a group decodes to values that rows of max_abs may give. Encoding makes at most
 * three times as much of scale and bias; what comes from elsewhere may make infinity of finite
 * ones. False for NaN. */
static inline bool quire__affine_fits(const quire_side_format *side, float scale, float bias) {
    const float n = (float)((1 << side->bits) - 1);
    return fabsf(scale) * n + fabsf(bias) <= 4 * side->max_abs;
}

void quire__put_param(const quire_side_format *side, uint8_t *record, size_t i, float x);

#endif

/* Inside src/codec: what a family implements. Codes are bit patterns, one byte each, (64, D) in natural order;
 * parameters are written straight into the record. `encode` sees a record that is zero. */
#ifndef QUIRE_CODEC_FAMILY_H
#define QUIRE_CODEC_FAMILY_H

#include "codec/codec.h"

enum { T = QUIRE_PAGE_TOKENS };

typedef struct quire_family_ops {
    const char *name;
    const char *summary;
    void (*encode)(const quire_side_format *side, const float *rows, int skip, uint8_t *codes, uint8_t *record);
    void (*decode)(const quire_side_format *side, const uint8_t *codes, const uint8_t *record, float *rows);
} quire_family_ops;

extern const quire_family_ops quire__channel_ops, quire__uniform_ops, quire__book_ops, quire__prod_ops,
    quire__affine_ops, quire__block_ops;

void quire__put_param(const quire_side_format *side, uint8_t *record, size_t i, float x);

#endif

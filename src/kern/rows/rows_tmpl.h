/* Template: the row and page functions of the kernel table (quire_row_kernels). One source over the
 * vector types of gcc and clang; a file per instruction set includes it and is compiled with its
 * flags.
 *
 * Parameters:
 *   QUIRE_ROWS_NAME       name of the table
 *   VEC_LANES, VEC_PLAIN  optional, see vec_tmpl.h
 */
#ifndef QUIRE_ROWS_NAME
#error "rows_tmpl.h needs QUIRE_ROWS_NAME"
#endif

#include "base/real.h"
#include "kern/kern.h"
#include "kern/rows/encode_tmpl.h"
#include "kern/rows/error_feedback_tmpl.h"
#include "kern/rows/hadamard_tmpl.h"
#include "kern/rows/pack_tmpl.h"

static void seal_side(const quire_side_format *side, const float *rows, int skip, uint8_t *record) {
    const size_t n = (size_t)T * (size_t)side->dim, skipped = (size_t)skip * (size_t)side->dim;
    memset(record + side->codes, 0, quire__side_end(side) - side->codes);
    if (skip >= T)
        return;
    if (side->family == QUIRE_FAMILY_RAW) {
        uint8_t *to = record + side->codes + skipped * quire__type_bytes(side->type);
        quire__row_to_raw(side->type, to, n - skipped, rows + skipped);
        return;
    }
    uint8_t codes[T * QUIRE_DIM_MAX];
    memset(codes, 0, skipped);
    switch (side->family) {
    case QUIRE_FAMILY_CHANNEL:
        encode_channel(side, rows, skip, codes, record);
        break;
    case QUIRE_FAMILY_UNIFORM:
        encode_uniform(side, rows, skip, codes, record);
        break;
    case QUIRE_FAMILY_BOOK:
        encode_book(side, rows, skip, codes, record);
        break;
    case QUIRE_FAMILY_PROD:
        encode_prod(side, rows, skip, codes, record);
        break;
    case QUIRE_FAMILY_AFFINE:
        encode_affine(side, rows, skip, codes, record);
        break;
    default:
        encode_block(side, rows, skip, codes, record);
    }
    if (side->is_v)
        pack_v(side->bits, side->dim, codes, record + side->codes);
    else
        pack_k(side->bits, side->n_mixed, side->dim, codes, record + side->codes);
}

static void round_with_feedback(const quire_side_format *side, const float *rows, int skip,
                                const quire_page_feedback *feedback, uint8_t *record) {
    uint8_t codes[T * QUIRE_DIM_MAX];
    feedback_codes(side, rows, skip, feedback, record, codes);
    memset(record + side->codes, 0, side->code_bytes);
    pack_k(side->bits, side->n_mixed, side->dim, codes, record + side->codes);
}

static void row_from_raw(quire_type type, const void *at, size_t n, float *row) {
    quire__row_from_raw(type, at, n, row);
}
static void row_to_raw(quire_type type, void *at, size_t n, const float *row) {
    quire__row_to_raw(type, at, n, row);
}

extern const quire_row_kernels QUIRE_ROWS_NAME;
const quire_row_kernels QUIRE_ROWS_NAME = {rotate,       unrotate,           project,
                                           quire__blend, row_from_raw,       row_to_raw,
                                           seal_side,    round_with_feedback};

/* Template, part of packed_tmpl.h: integer K.q of one page and set. Parameters: packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_SCORES_TMPL_H
#define QUIRE_KERN_NEON_SCORES_TMPL_H

#include "kern/neon/slabs.h"
#include "kern/neon/work_tmpl.h"

/* How K or V reaches the multiplier: codes straight from the page, or int8 unpacked beforehand.
 * FROM_4_MIXED is FROM_5_3 in the first half of the columns (rounded down), whose bytes are 5 and 3
 * bits, then FROM_4; or FROM_RULES, where each column has a rule. FROM_3_MIXED is FROM_4_2 in the
 * first half, then FROM_3. */
typedef enum source_kind {
    FROM_2,
    FROM_2_BOOK,
    FROM_3,
    FROM_3_BOOK,
    FROM_3_MIXED,
    FROM_4_2,
    FROM_4,
    FROM_4_BOOK,
    FROM_4_MIXED,
    FROM_5_3,
    FROM_RULES,
    FROM_8,
    UNPACKED
} source_kind;

/* a byte holds codes of several tiles. */
INLINE bool is_shared(const source_kind kind) { return kind <= FROM_4_2; }
/* a column is two octets. */
INLINE bool is_split(const source_kind kind) { return kind != FROM_8 && kind != UNPACKED; }
INLINE bool is_book(const source_kind kind) {
    return kind == FROM_2_BOOK || kind == FROM_3_BOOK || kind == FROM_4_BOOK;
}
INLINE int shared_bits(const source_kind kind) {
    return kind == FROM_2 || kind == FROM_2_BOOK ? 2 : 3;
}

/* How a column's bytes are split in two: x & mask, x >> shift. */
typedef struct split_rule {
    uint8_t mask[16];
    int8_t left[16]; /* the shift, negated */
} split_rule;

enum { MOST_MIXED = 18 };
_Static_assert(MOST_MIXED == QUIRE_DIM_MAX / 32, "rules for the widest head");
#define SIX(x) x, x, x, x, x, x
#define SIXTEEN(x) SIX(x), SIX(x), x, x, x, x
#define SPLIT_AT(bits)                                                                             \
    {                                                                                              \
        {SIXTEEN((1 << bits) - 1)}, { SIXTEEN(-bits) }                                             \
    }
/* Enough rules of either kind; those of a page with n mixed columns start at MOST_MIXED - n. */
static const split_rule SPLIT_RULES[2 * MOST_MIXED] = {SIX(SPLIT_AT(5)), SIX(SPLIT_AT(5)),
                                                       SIX(SPLIT_AT(5)), SIX(SPLIT_AT(4)),
                                                       SIX(SPLIT_AT(4)), SIX(SPLIT_AT(4))};

/* Sums of one pass: a number of tiles, and of pairs (of tokens or of channels) in each. */
enum { SUMS = 16 };
INLINE int tiles_of_k(const source_kind kind) { return is_shared(kind) ? 4 : 1; }
INLINE int tiles_of_v(const source_kind kind) {
    return is_shared(kind) ? (shared_bits(kind) == 2 ? 2 : 4) : 1;
}
INLINE int pairs_of_pass(const int tiles, const int rows, const int planes) {
    const int operands = operands_of(rows, planes), vectors = ROW_BY_ROW ? 2 : 1; /* of a sum */
    if (tiles == 1)
        return (operands <= 2 ? 8 : 4) / vectors;
    const int pairs = SUMS / (tiles * operands * vectors);
    return pairs == 1 && rows % 2 != 0 ? 2 : pairs; /* cells of a lone row hold two */
}

/* Two vectors side by side, so that their steps overlap. */
INLINE void split_bytes(const source_kind kind, const uint8x16_t x[2], int8x16_t book,
                        const split_rule *rule, int8x16_t lo[2], int8x16_t hi[2]) {
    if (kind == FROM_RULES) {
        const uint8x16_t mask = vld1q_u8(rule->mask);
        const int8x16_t left = vld1q_s8(rule->left);
        UNROLL for (int u = 0; u < 2; u++) {
            lo[u] = vreinterpretq_s8_u8(vandq_u8(x[u], mask));
            hi[u] = vreinterpretq_s8_u8(vshlq_u8(x[u], left));
        }
        return;
    }
    UNROLL for (int u = 0; u < 2; u++) {
        lo[u] = vreinterpretq_s8_u8(vandq_u8(x[u], vdupq_n_u8(kind == FROM_5_3 ? 31 : 15)));
        hi[u] = vreinterpretq_s8_u8(kind == FROM_5_3 ? vshrq_n_u8(x[u], 5) : vshrq_n_u8(x[u], 4));
    }
    if (kind == FROM_4_BOOK)
        UNROLL for (int u = 0; u < 2; u++) {
            lo[u] = vqtbl1q_s8(book, vreinterpretq_u8_s8(lo[u]));
            hi[u] = vqtbl1q_s8(book, vreinterpretq_u8_s8(hi[u]));
        }
}

/* acc[i][r] += token pair i times operand r, over `columns` columns, at least one. `stride` is the
 * distance between token pairs. A column is 16 dims (4 bits) or 8. Not unrolled, and without a test
 * before the first column: otherwise the accumulators are copied between registers. */
INLINE void multiply_columns(const source_kind kind, const int rows, const int planes,
                             const int pairs, const uint8_t *at, size_t stride,
                             size_t column_stride, int columns,
                             const uint8_t (*q8)[OPERANDS][OPERAND_BYTES], int8x16_t book,
                             const split_rule *rule, const uint8_t *ahead,
                             sums acc[SUMS][OPERANDS]) {
    const bool split = is_split(kind);
    const int operands = operands_of(rows, planes);
    const uint8_t *end = at + (size_t)columns * column_stride, *soon = at + 1024;
    _Pragma("GCC unroll 1") do {
        operand q[2][OPERANDS];
        if (kind != UNPACKED)
            UNROLL for (int i = 0; i < pairs; i += 4) {
                __builtin_prefetch(ahead + 16 * i, 0, 2);
                __builtin_prefetch(soon + 16 * i, 0, 3);
            }
        UNROLL for (int r = 0; r < operands; r++) {
            q[0][r] = load_operand(q8[0][r], is_single(rows, planes, r));
            if (split)
                q[1][r] = load_operand(q8[1][r], is_single(rows, planes, r));
        }
        UNROLL for (int i = 0; i < pairs; i += 2) {
            uint8x16_t x[2];
            UNROLL for (int u = 0; u < 2; u++) x[u] = vld1q_u8(at + (size_t)(i + u) * stride);
            if (split) {
                int8x16_t lo[2], hi[2];
                split_bytes(kind, x, book, rule, lo, hi);
                UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++)
                    acc[i + u][r] =
                        mma_s8(acc[i + u][r], q[0][r], lo[u], is_single(rows, planes, r));
                UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++)
                    acc[i + u][r] =
                        mma_s8(acc[i + u][r], q[1][r], hi[u], is_single(rows, planes, r));
            } else {
                UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++)
                    acc[i + u][r] = mma_s8(acc[i + u][r], q[0][r], vreinterpretq_s8_u8(x[u]),
                                           is_single(rows, planes, r));
            }
        }
        at += column_stride;
        q8 += split ? 2 : 1;
        if (kind == FROM_RULES)
            rule++;
        ahead += 16 * pairs;
        soon += 16 * pairs;
    }
    while (at != end)
        ;
}

INLINE const split_rule *rule_of(const source_kind kind, const split_rule *rules, int column) {
    return kind == FROM_RULES ? rules + column : NULL;
}

/* Octets first .. first+n of the tokens from pair `row` of tile `tile` on. */
INLINE void multiply_octets(const source_kind kind, const int rows, const int planes,
                            const int pairs, const uint8_t *k, int dim, int tile, int row,
                            int first, int n, const uint8_t (*q8)[OPERANDS][OPERAND_BYTES],
                            int8x16_t book, const split_rule *rules, const uint8_t *ahead,
                            sums acc[SUMS][OPERANDS]) {
    if (kind == UNPACKED) {
        const uint8_t *at =
            k + (size_t)tile * 16 * (size_t)dim + (size_t)first * 128 + (size_t)row * 16;
        multiply_columns(kind, rows, planes, pairs, at, 16, 128, n, q8 + first, book, NULL, at,
                         acc);
        return;
    }
    const int octets = kind == FROM_8 ? 1 : 2, n_columns = dim / (8 * octets),
              end = (first + n) / octets;
    const size_t base = (size_t)tile * (size_t)(kind == FROM_8 ? 16 : 8) * (size_t)dim;
    int column = first / octets;
    for (; column + 4 <= end && column % 4 == 0 && column + 4 <= n_columns; column += 4) {
        const size_t at = base + (size_t)column * 128 + (size_t)row * 64;
        multiply_columns(kind, rows, planes, pairs, k + at, 64, 16, 4, q8 + column * octets, book,
                         rule_of(kind, rules, column), ahead + at, acc);
    }
    while (column < end) { /* the narrow last quad, or part of a quad */
        const int quad = column / 4 * 4, width = n_columns - quad < 4 ? n_columns - quad : 4,
                  done = column - quad;
        const int last = quad + width < end ? quad + width : end;
        const size_t start = base + (size_t)quad * 128 + (size_t)(row * width) * 16,
                     at = start + (size_t)done * 16;
        /* Each column fetches a part of the rows. */
        const uint8_t *fetch = ahead + start + (size_t)(done * pairs) * 16;
        if (width == 4)
            multiply_columns(kind, rows, planes, pairs, k + at, 64, 16, last - column,
                             q8 + column * octets, book, rule_of(kind, rules, column), fetch, acc);
        else
            multiply_columns(kind, rows, planes, pairs, k + at, (size_t)width * 16, 16,
                             last - column, q8 + column * octets, book,
                             rule_of(kind, rules, column), fetch, acc);
        column = last;
    }
}

/* ------------------------------------------------------------------ bytes that tiles share */

INLINE int8x16_t shared_code(const source_kind kind, const uint8x16_t *slab, const int z,
                             const int h, int8x16_t book) {
    const uint8x16_t code = slab_code(shared_bits(kind), kind == FROM_4_2, slab, z, h);
    return is_book(kind) ? vqtbl1q_s8(book, code) : vreinterpretq_s8_u8(code);
}

/* acc[tile * pairs + i][r] += token pair i of each tile times operand r, over `columns` columns, at
 * least one. A column is 16 dims (3 bits) or 8 (2 bits). */
INLINE void multiply_shared(const source_kind kind, const int rows, const int planes,
                            const int pairs, const uint8_t *at, size_t stride, size_t slab_stride,
                            int columns, const uint8_t (*q8)[OPERANDS][OPERAND_BYTES],
                            int8x16_t book, sums acc[SUMS][OPERANDS]) {
    const int bits = shared_bits(kind), slabs = slabs_of(bits), octets = bits == 3 ? 2 : 1;
    const int operands = operands_of(rows, planes);
    const uint8_t *end = at + 16 * columns;
    _Pragma("GCC unroll 1") do {
        operand q[2][OPERANDS];
        __asm__("" : "+r"(at)); /* else the next quad's loads occupy registers that sums need */
        UNROLL for (int o = 0; o < octets; o++) UNROLL for (int r = 0; r < operands; r++) q[o][r] =
            load_operand(q8[o][r], is_single(rows, planes, r));
        UNROLL for (int i = 0; i < pairs; i++) {
            uint8x16_t slab[3];
            UNROLL for (int s = 0; s < slabs; s++) slab[s] =
                vld1q_u8(at + (size_t)i * stride + (size_t)s * slab_stride);
            UNROLL for (int tile = 0; tile < 4; tile++) UNROLL for (int o = 0; o < octets; o++) {
                const int8x16_t x = bits == 3 ? shared_code(kind, slab, tile, o, book)
                                              : shared_code(kind, slab, tile / 2, tile % 2, book);
                UNROLL for (int r = 0; r < operands; r++) acc[tile * pairs + i][r] =
                    mma_s8(acc[tile * pairs + i][r], q[o][r], x, is_single(rows, planes, r));
            }
        }
        at += 16;
        q8 += octets;
    }
    while (at != end)
        ;
}

/* Columns first .. end of all token tiles, pairs row .. row+pairs of each. */
INLINE void multiply_tiles(const source_kind kind, const int rows, const int planes,
                           const int pairs, const uint8_t *k, int dim, int row, int first, int end,
                           const uint8_t (*q8)[OPERANDS][OPERAND_BYTES], int8x16_t book,
                           const uint8_t *ahead, sums acc[SUMS][OPERANDS]) {
    const int bits = shared_bits(kind), slabs = slabs_of(bits), octets = bits == 3 ? 2 : 1;
    const int n_columns = dim / (8 * octets);
    for (int column = first; column < end;) {
        const int quad = column / 4 * 4, width = n_columns - quad < 4 ? n_columns - quad : 4;
        const int last = quad + width < end ? quad + width : end;
        const size_t start = (size_t)quad * 128 * (size_t)slabs + (size_t)(row * width) * 16,
                     at = start + (size_t)(column - quad) * 16;
        UNROLL for (int s = 0; s < slabs; s++) UNROLL for (int i = 0; i < pairs; i++)
            __builtin_prefetch(ahead + start + (size_t)(s * width * 128 + i * width * 16), 0, 2);
        if (width == 4)
            multiply_shared(kind, rows, planes, pairs, k + at, 64, 512, last - column,
                            q8 + column * octets, book, acc);
        else
            multiply_shared(kind, rows, planes, pairs, k + at, (size_t)width * 16,
                            (size_t)width * 128, last - column, q8 + column * octets, book, acc);
        column = last;
    }
}

#endif

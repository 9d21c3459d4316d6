/* Template, part of packed_tmpl.h: integer p.V of one block and set into O. O of a set lies as
 * [channel pair][pair][r0 c0, r0 c1, r1 c0, r1 c1]. Parameters: packed_tmpl.h. */
#ifndef QUIRE_KERN_NEON_VALUES_TMPL_H
#define QUIRE_KERN_NEON_VALUES_TMPL_H

#include "kern/neon/scores_tmpl.h"
#include "kern/neon/work_tmpl.h"

/* acc[i][r] += channel pair i times operand r over one page's 64 tokens; channels 16*tile + 2*row
 * on. */
INLINE void weigh_page(const source_kind kind, const int rows, const int planes, const int pairs,
                       const uint8_t *v, int tile, int row,
                       const uint8_t (*p8)[OPERANDS][OPERAND_BYTES], int8x16_t book,
                       const uint8_t (*negative)[16] /* (8), or NULL: nothing is reflected */,
                       const uint8_t *ahead, sums acc[SUMS][OPERANDS]) {
    const bool nibbles = kind == FROM_4 || kind == FROM_4_BOOK;
    const int operands = operands_of(rows, planes);
    /* unpacked: [atom][channel pair]; 8 bits: [half][channel pair][4 atoms]; 4 bits: [channel
     * pair][4 atoms of both halves] */
    const size_t stride = kind == UNPACKED ? 16 : 64,
                 start = (size_t)tile * (nibbles ? 512 : 1024) + (size_t)row * stride;
    const uint8_t *at = v + start;
    ahead += start;
    int atom = 0;
    _Pragma("GCC unroll 1") do {
        operand p[2][OPERANDS];
        if (kind != UNPACKED)
            UNROLL for (int i = 0; i < pairs; i += 4) __builtin_prefetch(ahead + 16 * i, 0, 2);
        UNROLL for (int r = 0; r < operands; r++) {
            /* Half 0 of the page: low nibbles. */
            p[0][r] = load_operand(p8[atom][r], is_single(rows, planes, r));
            if (nibbles)
                p[1][r] = load_operand(p8[4 + atom][r], is_single(rows, planes, r));
        }
        uint8x16_t flip = vdupq_n_u8(0);
        if (negative) {
            flip = vld1q_u8(negative[atom]);
            if (nibbles) /* half 0 in the low nibbles, half 1 in the high ones */
                flip = vbslq_u8(vdupq_n_u8(15), flip, vld1q_u8(negative[4 + atom]));
        }
        UNROLL for (int i = 0; i < pairs; i += 2) {
            uint8x16_t x[2];
            UNROLL for (int u = 0; u < 2; u++) x[u] = vld1q_u8(at + (size_t)(i + u) * stride);
            if (negative)
                UNROLL for (int u = 0; u < 2; u++) x[u] = veorq_u8(x[u], flip);
            if (nibbles) {
                int8x16_t lo[2], hi[2];
                split_bytes(kind, x, book, NULL, lo, hi);
                UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++)
                    acc[i + u][r] =
                        mma_u8(acc[i + u][r], p[0][r], lo[u], is_single(rows, planes, r));
                UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++)
                    acc[i + u][r] =
                        mma_u8(acc[i + u][r], p[1][r], hi[u], is_single(rows, planes, r));
            } else {
                int8x16_t code[2] = {vreinterpretq_s8_u8(x[0]), vreinterpretq_s8_u8(x[1])};
                if (kind == FROM_8)
                    UNROLL for (int u = 0; u < 2; u++) code[u] = as_value(code[u]);
                UNROLL for (int u = 0; u < 2; u++) UNROLL for (int r = 0; r < operands; r++)
                    acc[i + u][r] =
                        mma_u8(acc[i + u][r], p[0][r], code[u], is_single(rows, planes, r));
            }
        }
        atom++;
        at += kind == UNPACKED ? 128 : 16;
        ahead += 16 * pairs;
        if (kind == FROM_8 && atom == 4)
            at += 512 - 64;
    }
    while (atom < (nibbles ? 4 : 8))
        ;
}

/* acc[z * pairs + i][r] += channel pair i of each of the tiles that share bytes; channels 16*(tile
 * + z) + 2*row on. */
INLINE void weigh_shared(const source_kind kind, const int rows, const int planes, const int pairs,
                         const uint8_t *v, int tile, int row,
                         const uint8_t (*p8)[OPERANDS][OPERAND_BYTES], int8x16_t book,
                         const uint8_t *ahead, sums acc[SUMS][OPERANDS]) {
    const int bits = shared_bits(kind), slabs = slabs_of(bits),
              operands = operands_of(rows, planes);
    const size_t start = (size_t)tile * 128 * (size_t)bits + (size_t)row * 64;
    const uint8_t *at = v + start;
    UNROLL for (int s = 0; s < slabs; s++) UNROLL for (int i = 0; i < pairs; i++)
        __builtin_prefetch(ahead + start + (size_t)(s * 512 + i * 64), 0, 2);
    int atom = 0;
    _Pragma("GCC unroll 1") do {
        operand p[2][OPERANDS];
        __asm__("" : "+r"(at)); /* see multiply_shared */
        UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < operands; r++) p[h][r] =
            load_operand(p8[4 * h + atom][r], is_single(rows, planes, r));
        UNROLL for (int i = 0; i < pairs; i++) {
            uint8x16_t slab[3];
            UNROLL for (int s = 0; s < slabs; s++) slab[s] = vld1q_u8(at + 64 * i + 512 * s);
            UNROLL for (int z = 0; z < tiles_of_v(kind); z++) UNROLL for (int h = 0; h < 2; h++) {
                const int8x16_t x = shared_code(kind, slab, z, h, book);
                UNROLL for (int r = 0; r < operands; r++) acc[z * pairs + i][r] =
                    mma_u8(acc[z * pairs + i][r], p[h][r], x, is_single(rows, planes, r));
            }
        }
        at += 16;
    }
    while (++atom < 4)
        ;
}

/* Whether as_value has changed these codes. */
INLINE bool is_moved(const source_kind kind) {
    return ROW_BY_ROW && (is_book(kind) || kind == FROM_8 || kind == UNPACKED);
}

/* What a block adds to O: o = o * keep + integer * unit + constant. */
typedef struct block_terms {
    float32x4_t unit[PAIRS], keep[PAIRS], constant[PAIRS]; /* constant: only with scale groups */
} block_terms;

/* O of channel tiles first .. first+n. */
INLINE void weigh_block(const source_kind kind, const int rows, const int planes,
                        const uint8_t *const v[PAGES], const uint8_t *const ahead[PAGES], int from,
                        int n_pages, const neon_work *w, int first, int n, int8x16_t book,
                        int scale_group /* -1: V has none */, const block_terms *terms, float *o) {
    const bool reflects = scale_group >= 0 && kind != UNPACKED;
    const int n_pairs = pairs_of(rows), operands = operands_of(rows, planes);
    const int tiles = tiles_of_v(kind), pairs = pairs_of_pass(tiles, rows, planes);
    sums start[OPERANDS];
    if (is_moved(kind))
        UNROLL for (int r = 0; r < operands; r++) start[r] =
            start_of_weights(planes == 1, w->p8[8 * from][r], sizeof w->p8[0], 8 * n_pages);
    for (int tile = first; tile < first + n; tile += tiles)
        for (int row = 0; row < 8; row += pairs) {
            sums acc[SUMS][OPERANDS];
            UNROLL for (int i = 0; i < tiles * pairs; i++) UNROLL for (int r = 0; r < operands; r++)
                acc[i][r] = is_moved(kind) ? start[r] : start_of_sums(planes == 1);
            int p = from;
            _Pragma("GCC unroll 1") do {
                if (is_shared(kind))
                    weigh_shared(kind, rows, planes, pairs, v[p], tile, row, &w->p8[8 * p], book,
                                 ahead[p], acc);
                else
                    weigh_page(kind, rows, planes, pairs, v[p], tile, row, &w->p8[8 * p], book,
                               reflects ? w->negative[p][scale_group] : NULL, ahead[p], acc);
            }
            while (++p < from + n_pages)
                ;
            UNROLL for (int i = 0; i < tiles * pairs; i++)
                UNROLL for (int pair = 0; pair < n_pairs; pair++) {
                const int at_pair = (tile + i / pairs) * 8 + row + i % pairs;
                float *at = o + ((size_t)at_pair * PAIRS + (size_t)pair) * 4;
                const bool lone = is_single(rows, planes, pair);
                const int32x4_t high = total_of(acc[i][pair], lone),
                                low = is_folded(rows, planes) ? vextq_s32(high, high, 2)
                                      : planes == 2 ? total_of(acc[i][n_pairs + pair], lone)
                                                    : high;
                const float32x4_t x =
                    planes == 1 ? vsubq_f32(as_f32(high), vld1q_f32(MAGIC)) /* <= 128 * 255 * 127 */
                                : vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
                float32x4_t old = vmulq_f32(vld1q_f32(at), terms->keep[pair]);
                if (scale_group >= 0)
                    old = vaddq_f32(old, terms->constant[pair]);
                vst1q_f32(at, vfmaq_f32(old, x, terms->unit[pair]));
            }
        }
}

#endif

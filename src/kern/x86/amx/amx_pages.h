/* From the records of a chunk to code tiles: a line of 64 bytes of a record, [4 columns][2
 * rows][8 bytes], becomes two rows of a tile. The order of channels within a tile of K (0 2 1 3 in
 * each four, except 8-bit codes) and of tokens within a tile of V is the record's; q and weights
 * are stored to match. */
#ifndef QUIRE_KERN_X86_AMX_PAGES_H
#define QUIRE_KERN_X86_AMX_PAGES_H

#include "kern/shared/channel_query.h"
#include "kern/shared/page_params_tmpl.h"
#include "kern/x86/half.h"
#include "kern/x86/amx/amx_transpose.h"
#include "kern/x86/value_slots_tmpl.h"

/* How a code enters a tile. Uniform codes of K are doubled and centred, 2 c - (2^bits - 1), so
 * that the products are what scores are made of. Codes of V stay as they are. */
typedef struct code_value {
    bool centred;
    const int8_t *book; /* or NULL */
    ivec table;
} code_value;

INLINE ivec to_value(const code_value *as, ivec code, ivec top /* 2^bits - 1 */) {
    if (as->book)
        return b_lookup(as->table, code);
    return as->centred ? b_sub(_mm512_add_epi8(code, code), top) : code;
}

/* `columns` times 16 bytes; the rest is zero. */
INLINE ivec load_line(const uint8_t *at, int columns) {
    return _mm512_maskz_loadu_epi64((__mmask8)((1 << 2 * columns) - 1), at);
}

/* Octets of low and high codes alternate: 8 of each of two rows. */
INLINE void put_pair(int8_t (*rows)[TILE_ROW_BYTES], ivec low, ivec high) {
    b_store(rows[0], _mm512_unpacklo_epi64(low, high));
    b_store(rows[1], _mm512_unpackhi_epi64(low, high));
}

/* 4 octets of each of two rows, into one half of each. */
INLINE void put_half_pair(int8_t (*rows)[TILE_ROW_BYTES], int half, ivec x) {
    const ivec y = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x);
    _mm256_storeu_si256((void *)(rows[0] + 32 * half), _mm512_castsi512_si256(y));
    _mm256_storeu_si256((void *)(rows[1] + 32 * half), _mm512_extracti64x4_epi64(y, 1));
}

/* ------------------------------------------------------------------ K */

/* Codes of four columns of 16 channels of one row pair, low and high ones, in token tile i of n. */
typedef struct wide_columns {
    ivec low, high;
} wide_columns;

INLINE wide_columns split_4_bits(ivec x, const bool mixed) {
    return (wide_columns){b_field(x, 0, mixed ? 31 : 15),
                          mixed ? b_field(x, 5, 7) : b_field(x, 4, 15)};
}
INLINE wide_columns split_3_bits(const ivec part[3], const int tile, const bool mixed) {
    if (tile < 3)
        return (wide_columns){b_field(part[tile], 0, mixed ? 15 : 7),
                              mixed ? b_field(part[tile], 4, 3) : b_field(part[tile], 3, 7)};
    const ivec low = b_field(part[0], 6, 3), high = b_field(part[1], 6, 3);
    return (wide_columns){b_or(low, b_field(part[2], 4, mixed ? 12 : 4)),
                          mixed ? high : b_or(high, b_field(part[2], 5, 4))};
}

/* `mixed`: which columns have a bit more in low codes and a bit less in high ones. */
INLINE wide_columns split(const int bits, const ivec part[3], const int tile, __mmask8 mixed) {
    const wide_columns a =
        bits == 4 ? split_4_bits(part[0], false) : split_3_bits(part, tile, false);
    if (!mixed)
        return a;
    const wide_columns b = bits == 4 ? split_4_bits(part[0], true) : split_3_bits(part, tile, true);
    return (wide_columns){_mm512_mask_blend_epi64(mixed, a.low, b.low),
                          _mm512_mask_blend_epi64(mixed, a.high, b.high)};
}

/* 4 or 3 bits: columns of 16 channels, which share bytes in pairs of octets. */
INLINE void unpack_wide_columns(const int bits, const quire_side_format *k, const uint8_t *codes,
                                const code_value *as, tile8 *to) {
    const int n = k->dim / 16, parts = parts_of(k->dim), slabs = bits == 3 ? 3 : 1;
    for (int quad = 0; quad < n; quad += 4) {
        const int width = n - quad < 4 ? n - quad : 4;
        const int mixed_columns = k->n_mixed <= quad          ? 0
                                  : k->n_mixed - quad < width ? k->n_mixed - quad
                                                              : width;
        const __mmask8 mixed = (__mmask8)((1 << 2 * mixed_columns) - 1);
        const ivec top = b_all((1 << bits) - 1);
        const ivec low_top = _mm512_mask_blend_epi64(mixed, top, b_all((2 << bits) - 1)),
                   high_top = _mm512_mask_blend_epi64(mixed, top, b_all((1 << bits) / 2 - 1));
        for (int r = 0; r < 8; r++) {
            const uint8_t *at = codes + quad * 128 * slabs + r * width * 16;
            ivec part[3];
            for (int i = 0; i < slabs; i++)
                part[i] = load_line(at + i * 8 * width * 16, width);
            UNROLL for (int tile = 0; tile < K_TILES; tile++) {
                if (bits == 4)
                    part[0] = load_line(at + tile * bits * 2 * k->dim, width);
                const wide_columns x = split(bits, part, tile, mixed);
                put_pair(to[tile * parts + quad / 4] + 2 * r, to_value(as, x.low, low_top),
                         to_value(as, x.high, high_top));
            }
        }
    }
}

/* 8 or 2 bits: columns of 8 channels; of 2 bits, a byte has one code of each token tile. */
INLINE void unpack_narrow_columns(const int bits, const quire_side_format *k, const uint8_t *codes,
                                  const code_value *as, tile8 *to) {
    const int n = k->dim / 8, parts = parts_of(k->dim);
    for (int quad = 0; quad < n; quad += 4) {
        const int width = n - quad < 4 ? n - quad : 4;
        for (int r = 0; r < 8; r++) {
            const uint8_t *at = codes + quad * 128 + r * width * 16;
            UNROLL for (int tile = 0; tile < K_TILES; tile++) {
                const ivec x = bits == 8 ? load_line(at + tile * bits * 2 * k->dim, width)
                                         : b_field(load_line(at, width), 2 * tile, 3);
                put_half_pair(to[tile * parts + quad / 8] + 2 * r, quad / 4 % 2,
                              bits == 8 ? x : to_value(as, x, b_all(3)));
            }
        }
    }
}

static void unpack_k_tiles(const quire_side_format *k, const uint8_t *codes, tile8 *to) {
    const code_value as = {!k->book, k->book, k->book ? b_repeat16(k->book) : b_all(0)};
    if (k->bits == 8)
        unpack_narrow_columns(8, k, codes, &as, to);
    else if (k->bits == 4)
        unpack_wide_columns(4, k, codes, &as, to);
    else if (k->bits == 3)
        unpack_wide_columns(3, k, codes, &as, to);
    else
        unpack_narrow_columns(2, k, codes, &as, to);
}

/* ------------------------------------------------------------------ V */

/* n pieces of 4 / n columns, side by side. */
INLINE ivec join_columns(const ivec *piece, int n) {
    if (n == 1)
        return piece[0];
    const __m256i pair = _mm512_castsi512_si256(piece[1]);
    if (n == 2)
        return _mm512_inserti64x4(piece[0], pair, 1);
    const __m256i low =
        _mm256_inserti128_si256(_mm512_castsi512_si256(piece[0]), _mm256_castsi256_si128(pair), 1);
    const __m256i high = _mm256_inserti128_si256(_mm512_castsi512_si256(piece[2]),
                                                 _mm512_castsi512_si128(piece[3]), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Tiles of 16 channels first .. first+tiles, which share bytes. */
INLINE void unpack_v_run(const int bits, const uint8_t *run, int tiles, const code_value *as,
                         tile8 *to) {
    const int share = bits == 2 ? 2 : bits == 3 ? 4 : 1, slabs = bits == 3 ? 3 : 1;
    const int columns = 4 * tiles / share;
    for (int r = 0; r < 8; r++) {
        const uint8_t *at = run + r * columns * 16;
        ivec slab[3] = {load_line(at, columns)};
        if (bits == 8 || bits == 4) {
            const ivec low = bits == 8 ? slab[0] : b_field(slab[0], 0, 15),
                       high = bits == 8 ? load_line(at + 512, 4) : b_field(slab[0], 4, 15);
            put_pair(to[0] + 2 * r, bits == 8 ? low : to_value(as, low, low),
                     bits == 8 ? high : to_value(as, high, high));
            continue;
        }
        for (int i = 1; i < slabs; i++)
            slab[i] = load_line(at + i * 8 * columns * 16, columns);
        ivec slot[4][2] = {{b_all(0)}};
        UNROLL for (int z = 0; z < share; z++) UNROLL for (int h = 0; h < 2; h++) {
            const ivec code = v_slot(bits, z, h, slab);
            slot[z][h] = to_value(as, code, code);
        }
        for (int tile = 0; tile < tiles; tile++) {
            ivec piece[2][4] = {{b_all(0)}};
            for (int i = 0; i < share / tiles; i++)
                for (int h = 0; h < 2; h++)
                    piece[h][i] = slot[tile + i * tiles][h];
            put_pair(to[tile] + 2 * r, join_columns(piece[0], share / tiles),
                     join_columns(piece[1], share / tiles));
        }
    }
}

static void unpack_v_tiles(const quire_side_format *v, const uint8_t *codes, tile8 *to) {
    const code_value as = {false, v->book, v->book ? b_repeat16(v->book) : b_all(0)};
    const int n_tiles = v->dim / TILE_ROWS;
    for (int first = 0, run = v->bits == 2   ? 2
                              : v->bits == 3 ? 4
                                             : 1;
         first < n_tiles; first += run) {
        while (first + run > n_tiles)
            run /= 2;
        const uint8_t *at = codes + first * 128 * v->bits;
        if (v->bits == 8)
            unpack_v_run(8, at, run, &as, to + first);
        else if (v->bits == 4)
            unpack_v_run(4, at, run, &as, to + first);
        else if (v->bits == 3)
            unpack_v_run(3, at, run, &as, to + first);
        else
            unpack_v_run(2, at, run, &as, to + first);
    }
}

/* ------------------------------------------------------------------ parameters, and a page */

/* s' of channel_query.h, of channels (K) or tokens (V), in both halves of each number. */
static float scales_to_halves(const float *scale, int n, uint32_t *to) {
    fvec most = f_all(0);
    for (int d = 0; d < n; d += W)
        most = f_max_abs(most, f_load(scale + d));
    const int exponent = quire__scale_exponent(fp16_bits(f_largest(most)));
    for (int d = 0; d < n; d += W) {
        const ivec h =
            h_from_floats(f_mul(f_load(scale + d), f_all(quire__power_of_two(-exponent))));
        b_store(to + d, b_or(h, i_shl(h, 16)));
    }
    return quire__power_of_two(exponent);
}

static void load_page(const quire_format *f, const uint8_t *record, int page, chunk_pages *to) {
    const quire_side_format *k = &f->k, *v = &f->v;
    float params[AMX_DIM_MAX];
    unpack_k_tiles(k, record + k->codes, k_tiles(to, parts_of(k->dim), page));
    unpack_v_tiles(v, record + v->codes, v_tiles(to, v->dim, page));
    if (kind_of(k) == TOKEN) {
        load_token_scales(k, record, (float *)(void *)to->k_scale[page]);
    } else if (kind_of(k) == WIDE) {
        load_params(k, record, 0, k->dim, (float *)(void *)to->k_scale[page]);
    } else {
        load_params(k, record, 0, k->dim, params);
        to->k_unit[page] = scales_to_halves(params, k->dim, to->k_scale[page]);
    }
    if (k->zeros)
        load_params(k, record, k->zeros, k->dim, to->k_zero_of_page + page * k->dim);
    if (v->bits == 8) {
        load_token_scales(v, record, (float *)(void *)to->v_scale[page]);
    } else {
        load_params(v, record, 0, T, params);
        to->v_unit[page] = scales_to_halves(params, T, to->v_scale[page]);
    }
}

/* Returns how many pages there are. */
static int load_chunk(quire_attend_job *job, chunk_pages *to) {
    const quire_format *f = job->format;
    int n = 0;
    for (int page = 0; page < CHUNK; page++) {
        const uint8_t *record = job->record[page], *ahead = page_ahead(job, page);
        to->present[page] = record != NULL;
        if (!record) /* its scores are not computed, and its weights are zeros */
            continue;
        for (size_t at = 0; ahead && at < f->bytes; at += 64)
            __builtin_prefetch(ahead + at, 0, 2);
        load_page(f, record, page, to);
        job->bytes_read += f->bytes;
        n++;
    }
    if (f->k.zeros)
        rows_to_strip(to->k_zero_of_page, CHUNK, f->k.dim, to->k_zero);
    return n;
}

#endif

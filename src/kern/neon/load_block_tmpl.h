/* Template, part of packed_tmpl.h: a block, that is two pages of a chunk, their parameters as fp32
 * and, where many rows share them, their codes as int8. */
#ifndef QUIRE_KERN_NEON_LOAD_BLOCK_TMPL_H
#define QUIRE_KERN_NEON_LOAD_BLOCK_TMPL_H

#include <math.h>

#include "kern/neon/channel_query_tmpl.h"
#include "kern/neon/unpack_tmpl.h"
#include "kern/neon/work_tmpl.h"

typedef struct block {
    const quire_attend_job *job;
    neon_work *work;
    int first; /* page of the chunk */
    /* Codes; NULL: no such page. */
    const uint8_t *k[PAGES], *v[PAGES], *k_ahead[PAGES], *v_ahead[PAGES];
    const uint8_t *ahead; /* to fetch between keys and values, or NULL */
    int from, n;          /* first page present, number of pages present */
} block;

static bool weighs_in_fp16(const quire_side_format *v) {
    return HAVE_SOFTMAX16 && is_token_scaled(v->family) && v->bits < 8;
}

#if HAVE_SOFTMAX16
/* The page's scales of V over 2^exponent, below 4, in the lanes of eight scores: [t0 t1 t0 t1 t2 t3
 * t2 t3]. */
static void load_scales16(neon_work *w, int p, const uint8_t *scales /* (64) fp16 */) {
    float16x8_t v[T / 8];
    const int exponent = largest_exponent(scales, T);
    const float16x8_t down = h_power_of_two(-exponent);
    UNROLL for (int i = 0; i < T / 8; i++) v[i] = vreinterpretq_f16_u8(vld1q_u8(scales + 16 * i));
    UNROLL for (int i = 0; i < T / 8; i++) {
        const uint32x4_t x = vreinterpretq_u32_f16(vmulq_f16(v[i], down));
        vst1q_u32((uint32_t *)(void *)w->scale16[p][2 * i], vzip1q_u32(x, x));
        vst1q_u32((uint32_t *)(void *)w->scale16[p][2 * i + 1], vzip2q_u32(x, x));
    }
    w->exponent16[p] = exponent;
}
#else
static void load_scales16(neon_work *w, int p, const uint8_t *scales) {
    (void)w, (void)p, (void)scales;
}
#endif

/* The magnitudes of V's scales; where a scale is negative, codes are reflected instead. */
static void load_value_scale_groups(const quire_side_format *v, const uint8_t *record, neon_work *w,
                                    int p) {
    load_scale_groups(v, record, BLOCK, w->v_scale + p * T, w->v_zero + p * T);
    for (int g = 0; g < v->n_groups; g++) {
        float *scale = w->v_scale + g * BLOCK + p * T;
        find_negative(scale, w->negative[p][g]);
        for (int t = 0; t < T; t++)
            scale[t] = fabsf(scale[t]);
    }
}

/* 8-bit codes depend most on memory, so the next block is fetched in memory order: its first record
 * while keys are scored, its second while values are weighed. What remains at the end of a record
 * is fetched now. */
static void fetch_in_order(block *b, const uint8_t *const *record) {
    const quire_format *f = b->job->format;
    const size_t bytes = f->k.code_bytes;
    b->ahead = record[1];
    for (int p = 0; p < PAGES; p++) {
        b->k_ahead[p] = record[0] + (size_t)p * bytes;
        b->v_ahead[p] = record[1] + (size_t)p * bytes;
        for (size_t at = PAGES * bytes; at < f->v.params; at += 64)
            __builtin_prefetch(record[p] + at, 0, 2);
    }
}

static void load_block(block *b) {
    const quire_format *f = b->job->format;
    neon_work *w = b->work;
    const uint8_t *next_record[PAGES] = {NULL, NULL};
    b->from = b->n = 0;
    for (int p = 0; p < PAGES; p++) {
        const uint8_t *record = b->job->record[b->first + p];
        const uint8_t *ahead = page_ahead(b->job, b->first + p);
        b->k[p] = b->v[p] = b->k_ahead[p] = b->v_ahead[p] = NULL;
        if (!record)
            continue;
        if (b->n++ == 0)
            b->from = p;
        if (ahead)
            fetch_params(f, ahead);
        else
            ahead = record;
        if (f->k.family == QUIRE_FAMILY_CHANNEL) {
            if (f->k.bits < 8)
                w->k_unit[p] = scales_to_fp16(record + f->k.params, f->k.dim, w->k_scale_fp16[p]);
            else
                load_params(&f->k, record, 0, f->k.dim, w->k_scale[p]);
        } else if (is_token_scaled(f->k.family)) {
            load_token_scales(&f->k, record, w->k_scale[p]);
            if (f->k.family == QUIRE_FAMILY_PROD)
                load_params(&f->k, record, T, T, w->residual[p]);
        } else if (f->k.family != QUIRE_FAMILY_RAW) {
            load_scale_groups(&f->k, record, T, w->k_scale[p], w->k_zero[p]);
        }
        if (f->k.zeros)
            load_params(&f->k, record, f->k.zeros, f->k.dim, w->k_zero[p]);
        if (weighs_in_fp16(&f->v))
            load_scales16(w, p, record + f->v.params);
        else if (is_token_scaled(f->v.family))
            load_token_scales(&f->v, record, w->v_scale + p * T);
        else if (f->v.family != QUIRE_FAMILY_RAW)
            load_value_scale_groups(&f->v, record, w, p);
        b->k[p] = record + f->k.codes;
        b->v[p] = record + f->v.codes;
        b->k_ahead[p] = ahead + f->k.codes;
        b->v_ahead[p] = ahead + f->v.codes;
        next_record[p] = ahead == record ? NULL : ahead;
    }
    if (f->k.bits == 8 && f->v.bits == 8 && f->k.dim == f->v.dim && next_record[0] &&
        next_record[PAGES - 1])
        fetch_in_order(b, next_record);
}

static void unpack_keys(block *b) {
    const quire_side_format *k = &b->job->format->k;
    for (int p = 0; p < PAGES; p++) {
        if (!b->k[p])
            continue;
        unpack_k(k->bits, k->n_mixed, k->dim, b->k[p], k->book, b->work->k8[p]);
        if (k->family == QUIRE_FAMILY_PROD)
            unpack_k(1, 0, k->dim, b->job->record[b->first + p] + k->signs, NULL,
                     b->work->sign8[p]);
        b->k[p] = (const uint8_t *)b->work->k8[p];
    }
}

static void unpack_values(block *b) {
    const quire_side_format *v = &b->job->format->v;
    for (int p = 0; p < PAGES; p++) {
        if (!b->v[p])
            continue;
        unpack_v(v->bits, v->dim, b->v[p], v->book, b->work->v8[p]);
        if (!is_token_scaled(v->family))
            reflect_v(v, (const uint8_t(*)[8][16])b->work->negative[p], b->work->v8[p]);
        b->v[p] = (const uint8_t *)b->work->v8[p];
    }
}

#endif

/* Converts codes to and from the arrays of other systems, losslessly: mlx (affine), ggml (blocks),
 * mlx-vlm (TurboQuant). */
#include <math.h>
#include <string.h>

#include "base/element.h"
#include "codec/family.h"
#include "codec/layout.h"

/* ------------------------------------------------------- little-endian bit streams in u32 words */

static size_t stream_words(int n, int bits) { return ((size_t)n * (size_t)bits + 31) / 32; }

static void stream_write(const uint8_t *codes, int n, int bits, uint8_t *out) {
    memset(out, 0, 4 * stream_words(n, bits));
    for (int i = 0; i < n; i++)
        for (int b = 0; b < bits; b++) {
            const size_t at = (size_t)i * (size_t)bits + (size_t)b;
            out[at / 8] = (uint8_t)(out[at / 8] | (codes[i] >> b & 1) << at % 8);
        }
}

static void stream_read(const uint8_t *in, int n, int bits, uint8_t *codes) {
    for (int i = 0; i < n; i++) {
        codes[i] = 0;
        for (int b = 0; b < bits; b++) {
            const size_t at = (size_t)i * (size_t)bits + (size_t)b;
            codes[i] = (uint8_t)(codes[i] | (in[at / 8] >> at % 8 & 1) << b);
        }
    }
}

/* 8-bit affine codes are stored as code - 128. */
static void flip_affine8(const quire_side_format *side, uint8_t *codes) {
    if (side->family != QUIRE_FAMILY_AFFINE || side->bits != 8)
        return;
    for (int i = 0; i < T * side->dim; i++)
        codes[i] ^= 0x80;
}

/* ---------------------------------------------- ggml blocks: {fp16 scale; codes of 32 channels} */

static size_t block_bytes(const quire_side_format *side) { return side->bits == 8 ? 34 : 18; }

static void blocks_write(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                         uint8_t *out) {
    for (int t = 0; t < T; t++)
        for (int g = 0; g < side->n_groups; g++, out += block_bytes(side)) {
            const uint8_t *c = codes + t * side->dim + g * 32;
            memcpy(out, record + side->params + 2 * (size_t)(g * T + t), 2);
            if (side->bits == 8)
                memcpy(out + 2, c, 32);
            else
                for (int j = 0; j < 16; j++)
                    out[2 + j] = (uint8_t)(c[j] | c[j + 16] << 4);
        }
}

static void blocks_read(const quire_side_format *side, const uint8_t *in, uint8_t *codes,
                        uint8_t *record) {
    for (int t = 0; t < T; t++)
        for (int g = 0; g < side->n_groups; g++, in += block_bytes(side)) {
            uint8_t *c = codes + t * side->dim + g * 32;
            memcpy(record + side->params + 2 * (size_t)(g * T + t), in, 2);
            if (side->bits == 8)
                memcpy(c, in + 2, 32);
            else
                for (int j = 0; j < 16; j++) {
                    c[j] = in[2 + j] & 15;
                    c[j + 16] = in[2 + j] >> 4;
                }
        }
}

/* ------------------------------------------------------------------ the two directions */

static quire_status prepare(const quire_page_shape *shape, quire_side side,
                            const quire_arrays *arrays, bool importing, const void *page,
                            quire_format *format, const quire_side_format **chosen) {
    if (!shape || !arrays || !page)
        return quire__fail(QUIRE_E_INVALID, "shape, arrays or page is NULL");
    if (side != QUIRE_SIDE_K && side != QUIRE_SIDE_V)
        return quire__fail(QUIRE_E_INVALID, "side %d is neither K nor V", (int)side);
    QUIRE_TRY(quire__format_init(format, shape->pair, shape->k_dim, shape->v_dim, shape->raw));
    const quire_side_format *s = *chosen = side == QUIRE_SIDE_K ? &format->k : &format->v;
    bool complete = arrays->codes != NULL;
    switch (s->family) {
    case QUIRE_FAMILY_AFFINE:
        complete = complete && arrays->scales && arrays->biases;
        break;
    case QUIRE_FAMILY_BLOCK:
        break;
    case QUIRE_FAMILY_BOOK:
        complete = complete && arrays->norms && (!s->zeros || arrays->means || importing);
        break;
    case QUIRE_FAMILY_PROD:
        complete = complete && arrays->norms && arrays->residual_norms && arrays->signs;
        break;
    default:
        return quire__fail(QUIRE_E_UNSUPPORTED, "codec %s has no array layout of another system",
                           quire_codec_name(s->codec));
    }
    return complete ? QUIRE_OK
                    : quire__fail(QUIRE_E_INVALID, "codec %s: an array is NULL",
                                  quire_codec_name(s->codec));
}

quire_status quire_page_export(const quire_page_shape *shape, quire_side which, const void *page,
                               const quire_arrays *out) {
    quire_format format;
    const quire_side_format *side;
    QUIRE_TRY(prepare(shape, which, out, false, page, &format, &side));
    const uint8_t *record = page;
    const int dim = side->dim;
    uint8_t codes[T * QUIRE_DIM_MAX];
    quire__side_unpack(side, record, codes);
    if (side->family == QUIRE_FAMILY_BLOCK) {
        blocks_write(side, codes, record, out->codes);
        return QUIRE_OK;
    }
    flip_affine8(side, codes);
    const size_t words = stream_words(dim, side->bits), sign_words = stream_words(dim, 1);
    for (int t = 0; t < T; t++)
        stream_write(codes + t * dim, dim, side->bits,
                     (uint8_t *)out->codes + 4 * words * (size_t)t);
    if (side->family == QUIRE_FAMILY_AFFINE) {
        const size_t n = (size_t)side->n_groups;
        for (size_t t = 0; t < T; t++)
            for (size_t g = 0; g < n; g++) {
                quire__put_element(side->type, out->scales, t * n + g,
                                   quire__side_param(side, record, g * T + t));
                quire__put_element(side->type, out->biases, t * n + g,
                                   quire__side_param(side, record, (n + g) * T + t));
            }
        return QUIRE_OK;
    }
    for (size_t t = 0; t < T; t++)
        out->norms[t] = quire__side_param(side, record, t) * sqrtf((float)dim);
    for (size_t d = 0; d < (size_t)dim && side->zeros; d++)
        out->means[d] = quire__side_param(side, record, side->zeros + d);
    if (side->family == QUIRE_FAMILY_PROD) {
        for (size_t t = 0; t < T; t++)
            out->residual_norms[t] = quire__side_param(side, record, T + t);
        quire__k_unpack(1, 0, dim, record + side->signs, codes);
        for (int t = 0; t < T; t++)
            stream_write(codes + t * dim, dim, 1, (uint8_t *)(out->signs + sign_words * (size_t)t));
    }
    return QUIRE_OK;
}

/* Imported parameters must be ones that encoding can produce: finite, also decoded, and norms
 * within fp16. */
static quire_status check_foreign(const quire_side_format *side, const quire_arrays *in) {
    const size_t n = (size_t)side->n_groups * T;
    bool fits = true;
    if (side->family == QUIRE_FAMILY_AFFINE) {
        for (size_t i = 0; i < n && fits; i++)
            fits = quire__affine_fits(side, quire__get_element(side->type, in->scales, i),
                                      quire__get_element(side->type, in->biases, i));
    } else if (side->family == QUIRE_FAMILY_BLOCK) {
        for (size_t i = 0; i < n && fits; i++) {
            const uint8_t *scale = (const uint8_t *)in->codes + i * block_bytes(side);
            fits = quire__all_finite(QUIRE_F16, scale, 1) &&
                   !(side->bits == 8 && quire__get_element(QUIRE_F16, scale, 0) < 0);
        }
    } else {
        for (int t = 0; t < T && fits; t++) {
            fits = in->norms[t] >= 0 && in->norms[t] / sqrtf((float)side->dim) <= QUIRE_F16_MAX;
            if (side->family == QUIRE_FAMILY_PROD)
                fits = fits && in->residual_norms[t] >= 0 && in->residual_norms[t] <= QUIRE_F16_MAX;
        }
        for (int d = 0; d < side->dim && side->zeros && in->means; d++)
            fits = fits && fabsf(in->means[d]) <= QUIRE_F16_MAX;
    }
    return fits ? QUIRE_OK
                : quire__fail(QUIRE_E_VALUE,
                              "codec %s: a scale, bias, norm or mean is not finite or does not fit",
                              quire_codec_name(side->codec));
}

quire_status quire_page_import(const quire_page_shape *shape, quire_side which,
                               const quire_arrays *in, void *page) {
    quire_format format;
    const quire_side_format *side;
    QUIRE_TRY(prepare(shape, which, in, true, page, &format, &side));
    QUIRE_TRY(check_foreign(side, in));
    uint8_t *record = page;
    const int dim = side->dim;
    uint8_t codes[T * QUIRE_DIM_MAX];
    memset(record + side->codes, 0,
           (side->is_v ? format.bytes : quire__side_end(side)) - side->codes);
    const size_t words = stream_words(dim, side->bits), sign_words = stream_words(dim, 1);
    if (side->family == QUIRE_FAMILY_BLOCK) {
        blocks_read(side, in->codes, codes, record);
    } else {
        for (int t = 0; t < T; t++)
            stream_read((const uint8_t *)in->codes + 4 * words * (size_t)t, dim, side->bits,
                        codes + t * dim);
        flip_affine8(side, codes);
    }
    quire__side_pack(side, codes, record);
    if (side->family == QUIRE_FAMILY_AFFINE) {
        const size_t n = (size_t)side->n_groups;
        for (size_t t = 0; t < T; t++)
            for (size_t g = 0; g < n; g++) {
                quire__put_param(side, record, g * T + t,
                                 quire__get_element(side->type, in->scales, t * n + g));
                quire__put_param(side, record, (n + g) * T + t,
                                 quire__get_element(side->type, in->biases, t * n + g));
            }
    } else if (side->family != QUIRE_FAMILY_BLOCK) {
        for (size_t t = 0; t < T; t++)
            quire__put_param(side, record, t, in->norms[t] / sqrtf((float)dim));
        for (size_t d = 0; d < (size_t)dim && side->zeros && in->means; d++)
            quire__put_param(side, record, side->zeros + d, in->means[d]);
    }
    if (side->family == QUIRE_FAMILY_PROD) {
        for (size_t t = 0; t < T; t++)
            quire__put_param(side, record, T + t, in->residual_norms[t]);
        for (int t = 0; t < T; t++)
            stream_read((const uint8_t *)(in->signs + sign_words * (size_t)t), dim, 1,
                        codes + t * dim);
        quire__k_pack(1, 0, dim, codes, record + side->signs);
    }
    return QUIRE_OK;
}

/* The sections of a record for a codec pair and head sizes; packing and reading whole sides. */
#include <string.h>

#include "base/element.h"
#include "base/size.h"
#include "codec/family.h"
#include "codec/layout.h"
#include "codec/tables.h"

typedef struct codec_row {
    quire_codec codec;
    const char *name;
    quire_family family;
    int bits, group, sides;
} codec_row;

static const codec_row CODECS[] = {
#define ROW(id, number, name, family, bits, group, sides)                                          \
    {QUIRE_CODEC_##id, name, QUIRE_FAMILY_##family, bits, group, sides},
    QUIRE_CODEC_MAP(ROW)
#undef ROW
};
enum { N_CODECS = sizeof CODECS / sizeof *CODECS };

/* Indexed by family; raw is handled here, it has no codes. */
static const quire_family_ops *const FAMILIES[] = {
    NULL,
    &quire__channel_ops,
    &quire__uniform_ops,
    &quire__book_ops,
    &quire__prod_ops,
    &quire__affine_ops,
    &quire__block_ops,
};

static const codec_row *find(quire_codec codec) {
    for (int i = 0; i < N_CODECS; i++)
        if (CODECS[i].codec == codec)
            return &CODECS[i];
    return NULL;
}

size_t quire_codec_count(void) { return N_CODECS; }

quire_status quire_codec_at(size_t index, quire_codec_info *info) {
    if (!info)
        return quire__fail(QUIRE_E_INVALID, "info is NULL");
    if (index >= N_CODECS)
        return quire__fail(QUIRE_E_INVALID, "there are %d codecs: index %zu is out of range",
                           N_CODECS, index);
    const codec_row *row = &CODECS[index];
    const quire_family_ops *ops = FAMILIES[row->family];
    *info = (quire_codec_info){
        row->codec,
        row->name,
        ops ? ops->name : "raw",
        quire__codec_is_mixed(row->codec)
            ? "K: as kc, a quarter of the channels a bit wider, a quarter narrower"
        : ops       ? ops->summary
        : row->bits ? "elements as they are"
                    : "elements in the pool's raw type",
        row->bits,
        row->group,
        (row->sides & QUIRE_SIDE_K) != 0,
        (row->sides & QUIRE_SIDE_V) != 0,
        quire__codec_is_mixed(row->codec)};
    return QUIRE_OK;
}

bool quire_codec_is_ordered(quire_codec codec) { return quire__codec_is_mixed(codec); }

const char *quire_codec_name(quire_codec codec) {
    const codec_row *row = find(codec);
    return row ? row->name : NULL;
}

/* ------------------------------------------------------------------ sections */

static quire_status side_init(quire_side_format *side, quire_codec codec, bool is_v, int32_t dim,
                              quire_type raw) {
    const codec_row *row = find(codec);
    const char *letter = is_v ? "V" : "K";
    if (!row)
        return quire__fail(QUIRE_E_UNKNOWN, "%s codec number %d is unknown", letter, (int)codec);
    if (!(row->sides & (is_v ? QUIRE_SIDE_V : QUIRE_SIDE_K)))
        return quire__fail(QUIRE_E_UNSUPPORTED, "codec %s does not serve %s", row->name, letter);
    if (dim < QUIRE_DIM_MIN || dim > QUIRE_DIM_MAX || dim % QUIRE_DIM_STEP)
        return quire__fail(QUIRE_E_UNSUPPORTED,
                           "%s head size %d: must be a multiple of %d from %d to %d", letter,
                           (int)dim, QUIRE_DIM_STEP, QUIRE_DIM_MIN, QUIRE_DIM_MAX);
    if (row->group && dim % row->group)
        return quire__fail(QUIRE_E_UNSUPPORTED,
                           "codec %s needs a %s head size divisible by %d, not %d", row->name,
                           letter, row->group, (int)dim);

    *side = (quire_side_format){
        .codec = codec, .family = row->family, .is_v = is_v, .dim = dim, .bits = row->bits};
    side->group = row->group ? row->group : dim;
    side->n_groups = dim / side->group;
    side->type = QUIRE_F16;
    side->unit = 1;
    /* 8-bit codes are signed. */
    side->mid = side->bits < 8 ? (float)((1 << side->bits) - 1) * 0.5f : 0;
    side->max_abs = QUIRE_F16_MAX;
    size_t n_params = 0;
    switch (row->family) {
    case QUIRE_FAMILY_RAW:
        side->type = codec == QUIRE_CODEC_F32    ? QUIRE_F32
                     : codec == QUIRE_CODEC_F16  ? QUIRE_F16
                     : codec == QUIRE_CODEC_BF16 ? QUIRE_BF16
                                                 : raw;
        side->bits = 8 * (int)quire__type_bytes(side->type);
        side->mid = 0; /* the type of `raw` decides its bits */
        if (side->type != QUIRE_F16)
            side->max_abs = QUIRE_BF16_MAX;
        break;
    case QUIRE_FAMILY_CHANNEL:
        side->zeros = (size_t)dim;
        n_params = 2 * (size_t)dim;
        side->n_mixed = quire__codec_is_mixed(codec) ? dim / 32 : 0;
        break;
    case QUIRE_FAMILY_UNIFORM:
        n_params = T;
        side->rotated = true;
        side->unit = quire__uniform_step(side->bits);
        break;
    case QUIRE_FAMILY_PROD:
        side->bits -= 1;
        side->sign_bytes = (size_t)(T * dim / 8);
        n_params = T; /* and those of BOOK */
        /* fall through */
    case QUIRE_FAMILY_BOOK:
        n_params += T;
        side->rotated = true;
        side->mid = 0;
        side->unit = quire__book(side->bits)->unit;
        side->book = quire__book(side->bits)->level;
        if (row->family == QUIRE_FAMILY_BOOK && !is_v) {
            side->zeros = T;
            n_params += (size_t)dim;
        }
        break;
    case QUIRE_FAMILY_AFFINE:
        n_params = 2 * (size_t)side->n_groups * T;
        side->type = raw;
        if (side->bits == 8)
            side->mid = -0.5f; /* stored as code - 128 */
        if (raw != QUIRE_F16)
            side->max_abs = 0x1p104f; /* edge / 1e-7 must not overflow */
        break;
    case QUIRE_FAMILY_BLOCK:
        n_params = (size_t)side->n_groups * T;
        break;
    }
    if (row->family == QUIRE_FAMILY_AFFINE) /* undoes code - 128 */
        side->mid_steps = side->mid + (side->bits == 8 ? 128.0f : 0.0f);
    else if (row->family == QUIRE_FAMILY_BLOCK && side->bits == 4)
        side->mid_steps = side->mid - 8.0f;
    side->code_bytes = (size_t)T * (size_t)dim * (size_t)side->bits / 8;
    side->param_bytes = n_params * quire__type_bytes(side->type);
    return QUIRE_OK;
}

size_t quire__side_end(const quire_side_format *side) {
    return quire__align(side->params + side->param_bytes, QUIRE_SECTION_ALIGN);
}

static size_t place_sections(quire_side_format *side, size_t at) {
    side->codes = at;
    side->signs = quire__align(side->codes + side->code_bytes, QUIRE_SECTION_ALIGN);
    side->params = quire__align(side->signs + side->sign_bytes, QUIRE_SECTION_ALIGN);
    return quire__side_end(side);
}

quire_status quire__format_init(quire_format *format, quire_pair pair, int32_t k_dim, int32_t v_dim,
                                quire_type raw) {
    if (!quire__type_valid(raw))
        return quire__fail(QUIRE_E_INVALID, "raw type %d is unknown: must be f32, f16 or bf16",
                           (int)raw);
    QUIRE_TRY(side_init(&format->k, pair.k, false, k_dim, raw));
    QUIRE_TRY(side_init(&format->v, pair.v, true, v_dim, raw));
    const size_t end = place_sections(&format->v, place_sections(&format->k, 0));
    format->bytes = quire__align(end, QUIRE_RECORD_ALIGN);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ encode and decode */

float quire__side_param(const quire_side_format *side, const uint8_t *record, size_t i) {
    return quire__get_element(side->type, record + side->params, i);
}

void quire__put_param(const quire_side_format *side, uint8_t *record, size_t i, float x) {
    quire__put_element(side->type, record + side->params, i, x);
}

bool quire__side_accepts(const quire_side_format *side, const float *rows, size_t n, size_t *bad) {
    *bad = quire__first_beyond(rows, n, side->max_abs);
    return *bad == n;
}

/* All finite f16 and bf16 elements fit. */
static bool raw_valid(const quire_side_format *side, const uint8_t *record) {
    const size_t n = side->code_bytes / quire__type_bytes(side->type);
    const uint8_t *at = record + side->codes;
    if (side->type != QUIRE_F32)
        return quire__all_finite(side->type, at, n);
    int bad = 0; /* no early exit: compilers vectorize this */
    for (size_t i = 0; i < n; i++)
        bad |= !(fabsf(quire__get_element(QUIRE_F32, at, i)) <= side->max_abs);
    return !bad;
}

static bool affine_valid(const quire_side_format *side, const uint8_t *record) {
    const size_t n = (size_t)side->n_groups * T;
    for (size_t i = 0; i < n; i++)
        if (!quire__affine_fits(side, quire__side_param(side, record, i),
                                quire__side_param(side, record, n + i)))
            return false;
    return true;
}

bool quire__side_valid(const quire_side_format *side, const uint8_t *record) {
    if (side->family == QUIRE_FAMILY_RAW)
        return raw_valid(side, record);
    if (side->family == QUIRE_FAMILY_AFFINE)
        return affine_valid(side, record);
    const size_t n = side->param_bytes / quire__type_bytes(side->type);
    if (!quire__all_finite(side->type, record + side->params, n))
        return false;
    const bool lengths = side->family == QUIRE_FAMILY_UNIFORM ||
                         side->family == QUIRE_FAMILY_BOOK || side->family == QUIRE_FAMILY_PROD ||
                         (side->family == QUIRE_FAMILY_BLOCK && side->bits == 8);
    if (lengths)
        for (size_t i = 0; i < (side->zeros ? side->zeros : n);
             i++) /* lengths: kernels require them not to be negative */
            if (quire__side_param(side, record, i) < 0)
                return false;
    return true;
}

void quire__side_pack(const quire_side_format *side, const uint8_t *codes, uint8_t *record) {
    if (side->is_v)
        quire__v_pack(side->bits, side->dim, codes, record + side->codes);
    else
        quire__k_pack(side->bits, side->n_mixed, side->dim, codes, record + side->codes);
}

void quire__side_unpack(const quire_side_format *side, const uint8_t *record, uint8_t *codes) {
    if (side->is_v)
        quire__v_unpack(side->bits, side->dim, record + side->codes, codes);
    else
        quire__k_unpack(side->bits, side->n_mixed, side->dim, record + side->codes, codes);
}

void quire__side_encode(const quire_side_format *side, const float *rows, int skip,
                        uint8_t *record) {
    const size_t n = (size_t)T * (size_t)side->dim, skipped = (size_t)skip * (size_t)side->dim;
    memset(record + side->codes, 0, quire__side_end(side) - side->codes);
    if (skip >= T)
        return;
    if (side->family == QUIRE_FAMILY_RAW) {
        for (size_t i = skipped; i < n; i++)
            quire__put_element(side->type, record + side->codes, i, rows[i]);
        return;
    }
    uint8_t codes[T * QUIRE_DIM_MAX];
    memset(codes, 0, skipped);
    FAMILIES[side->family]->encode(side, rows, skip, codes, record);
    quire__side_pack(side, codes, record);
}

void quire__side_decode(const quire_side_format *side, const uint8_t *record, float *rows) {
    if (side->family == QUIRE_FAMILY_RAW) {
        quire__row_from_raw(side->type, record + side->codes, (size_t)T * (size_t)side->dim, rows);
        return;
    }
    uint8_t codes[T * QUIRE_DIM_MAX];
    quire__side_unpack(side, record, codes);
    FAMILIES[side->family]->decode(side, codes, record, rows);
}

void quire__side_expand(const quire_side_format *side, const uint8_t *record, int8_t *codes) {
    quire__side_unpack(side, record, (uint8_t *)codes);
    if (!side->book)
        return;
    for (int i = 0; i < T * side->dim; i++)
        codes[i] = side->book[codes[i]];
}

void quire__side_signs(const quire_side_format *side, const uint8_t *record, int8_t *signs) {
    quire__k_unpack(1, 0, side->dim, record + side->signs, (uint8_t *)signs);
}

void quire__page_encode(const quire_format *format, const float *k, const float *v, int skip,
                        uint8_t *record) {
    quire__side_encode(&format->k, k, skip, record);
    quire__side_encode(&format->v, v, skip, record);
    const size_t end = quire__side_end(&format->v);
    memset(record + end, 0, format->bytes - end);
}

#include "record_any.h"

namespace quire_cuda {

static bool make_side(AnySide *s, quire_codec codec, bool is_k, int dim, quire_type raw) {
    constexpr Family RAW = Family::raw, CHANNEL = Family::channel, UNIFORM = Family::uniform,
                     BOOK = Family::book, PROD = Family::prod, AFFINE = Family::affine,
                     BLOCK = Family::block;
    static const struct {
        quire_codec codec;
        Family family;
        int bits, group, sides;
    } codecs[] = {
#define CODEC(id, number, name, family, bits, group, sides)                                        \
    {QUIRE_CODEC_##id, family, bits, group, sides},
        QUIRE_CODEC_MAP(CODEC)
#undef CODEC
    };
    for (const auto &c : codecs) {
        if (c.codec != codec)
            continue;
        if (!(c.sides & (is_k ? 1 : 2)) || (c.group && dim % c.group))
            return false;
        *s = {};
        s->is_k = is_k;
        s->family = c.family;
        s->dim = dim;
        s->bits = c.family == Family::prod ? c.bits - 1 : c.bits;
        s->group = c.group;
        s->mixed = is_mixed(codec) ? dim / 32 : 0;
        s->type = codec == QUIRE_CODEC_F32    ? QUIRE_F32
                  : codec == QUIRE_CODEC_F16  ? QUIRE_F16
                  : codec == QUIRE_CODEC_BF16 ? QUIRE_BF16
                                              : raw;
        if (c.family == Family::raw)
            s->bits = s->type == QUIRE_F32 ? 32 : 16;
        return true;
    }
    return false;
}

static int param_bytes(const AnySide &s) {
    switch (s.family) {
    case Family::channel:
        return 4 * s.dim;
    case Family::uniform:
        return 2 * T;
    case Family::book:
        return 2 * T + (s.is_k ? 2 * s.dim : 0);
    case Family::prod:
        return 4 * T;
    case Family::affine:
        return 4 * T * (s.dim / s.group);
    case Family::block:
        return 2 * T * (s.dim / s.group);
    default:
        return 0;
    }
}

/* Sections from `at` on; where they end. All are at multiples of 64. */
static int place(AnySide *s, int at) {
    s->codes = at;
    s->signs = align_up(s->codes + T * s->dim * s->bits / 8, 64);
    s->params = s->signs + (s->family == Family::prod ? align_up(T * s->dim / 8, 64) : 0);
    s->end = align_up(s->params + param_bytes(*s), 64);
    return s->end;
}

bool any_record(quire_pair pair, int k_dim, int v_dim, quire_type raw, AnyRecord *record) {
    for (int dim : {k_dim, v_dim})
        if (dim < 32 || dim > 256 || dim % 16)
            return false;
    if (!make_side(&record->k, pair.k, true, k_dim, raw) ||
        !make_side(&record->v, pair.v, false, v_dim, raw))
        return false;
    record->bytes = align_up(place(&record->v, place(&record->k, 0)), 128);
    return true;
}

} // namespace quire_cuda

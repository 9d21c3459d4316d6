/* kc8 kc4 kc3 kc2, km4 km3: K with a scale and a zero per channel, over the 64 tokens of a page.
 *
 *     scale = (max - min) / (levels - 1)     zero = (max + min) / 2     both rounded to fp16
 *                                            before use
 *     code  = round((x - zero) / scale + mid)       value = zero + scale * (code - mid)
 *
 * `zero` is the value of the middle code (mid = 7.5, 3.5, 1.5; 0 for the signed codes of kc8),
 * so that a constant added to a channel moves only `zero`, and rounding errors of q multiply
 * deviations, not offsets.
 *
 * km4 and km3 take as many bytes as kc4 and kc3, but give a bit of each of the channels that
 * matter least to one that matters most. Rows come in the order that says which is which
 * (channel_order.c): its first blocks of 16 are mixed, and levels and mid go by the place of a
 * channel (quire__code_bits). Parameters: fp16 scale[D], fp16 zero[D].
 */
#include "base/fp16.h"
#include "base/real.h"
#include "codec/family.h"

static void encode(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                   uint8_t *record) {
    const int dim = side->dim;
    for (int d = 0; d < dim; d++) {
        float min = rows[skip * dim + d], max = min;
        for (int t = skip + 1; t < T; t++) {
            const float x = rows[t * dim + d];
            if (x < min)
                min = x;
            if (x > max)
                max = x;
        }
        quire__put_param(side, record, (size_t)d,
                         (max - min) /
                             (float)(quire__highest_code(side, d) - quire__lowest_code(side)));
        /* + 0: never -0, whichever zeros min and max are. */
        quire__put_param(side, record, side->zeros + (size_t)d, (max + min) * 0.5f + 0.0f);
        const float scale = quire__side_param(side, record, (size_t)d);
        const float zero = quire__side_param(side, record, side->zeros + (size_t)d);
        const float inverse = scale > 0 ? 1.0f / scale : 0, mid = quire__code_mid(side, d);
        for (int t = skip; t < T; t++) {
            const float x = (rows[t * dim + d] - zero) * inverse + mid;
            codes[t * dim + d] = quire__nearest_code(side, d, x);
        }
    }
}

static void decode(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                   float *rows) {
    const int dim = side->dim;
    for (int d = 0; d < dim; d++) {
        const float scale = quire__side_param(side, record, (size_t)d);
        const float zero = quire__side_param(side, record, side->zeros + (size_t)d),
                    mid = quire__code_mid(side, d);
        for (int t = 0; t < T; t++) {
            const float code = quire__signed_code(side, codes[t * dim + d]);
            rows[t * dim + d] = zero + scale * (code - mid);
        }
    }
}

const quire_family_ops quire__channel_ops = {"channel", "K: scale and zero per channel of a page",
                                             encode, decode};

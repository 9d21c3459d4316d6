/* A query row as small integers. Canonical: every ISA has exactly these products and roundings. */
#include <string.h>

#include "base/real.h"
#include "kern/ref/ref.h"
#include "kern/shared/channel_query.h"
#include "kern/shared/job.h"

/* With the channel scales folded in, one plane: shared/channel_query.h. */
static void quantize_by_channels(const quire_side_format *k, const uint8_t *record, const float *q,
                                 quire_int_query *out) {
    float largest = 0, magnitude = 0, y[QUIRE_DIM_MAX];
    uint16_t largest_scale = 0;
    for (int d = 0; d < k->dim; d++) {
        const uint16_t scale = quire__f32_to_f16(fabsf(quire__side_param(k, record, (size_t)d)));
        largest = fmaxf(largest, fabsf(q[d]));
        largest_scale = scale > largest_scale ? scale : largest_scale;
    }
    const int a = quire__query_exponent(largest), b = quire__scale_exponent(largest_scale);
    for (int d = 0; d < k->dim; d++) {
        const float scale =
            quire__round_fp16(quire__side_param(k, record, (size_t)d) * quire__power_of_two(-b));
        y[d] = quire__round_fp16(quire__round_fp16(q[d] * quire__query_factor(a)) * scale);
        magnitude = fmaxf(magnitude, fabsf(y[d]));
    }
    const float inverse = quire__channel_inverse(magnitude);
    out->n_planes = 1;
    out->scale[0] = quire__query_unit(a) * quire__power_of_two(b) / inverse;
    out->sum[0] = out->centre[0] = 0;
    for (int d = 0; d < k->dim; d++) {
        const int32_t x = quire__round_product(y[d], inverse);
        out->plane[0][d] = (int8_t)x;
        out->plane[1][d] = 0;
        out->sum[0] += x;
        out->centre[0] += x * (int32_t)(2 * quire__code_mid(k, d));
    }
}

void quire__ref_quantize_query(const quire_side_format *k, const uint8_t *record, const float *q,
                               quire_int_query *out) {
    if (k->family == QUIRE_FAMILY_CHANNEL && k->bits < 8) {
        quantize_by_channels(k, record, q, out);
        return;
    }
    /* Below this a scale group of q is zero: 127 / magnitude must stay finite. */
    const float smallest = 1e-30f;
    float scaled[QUIRE_DIM_MAX];
    for (int d = 0; d < k->dim; d++)
        scaled[d] = k->family == QUIRE_FAMILY_CHANNEL
                        ? q[d] * quire__side_param(k, record, (size_t)d)
                        : q[d];
    /* int8 would lose as much as 8-bit K itself; a second plane makes it 15 bits. */
    out->n_planes = k->bits == 8 ? 2 : 1;
    const float steps = out->n_planes == 2 ? 127 * 128 : 127;
    for (int g = 0; g < k->n_groups; g++) {
        const int first = g * k->group;
        float magnitude = 0;
        for (int d = first; d < first + k->group; d++)
            magnitude = fmaxf(magnitude, fabsf(scaled[d]));
        const bool zero = magnitude < smallest;
        const float inverse = zero ? 0 : steps / magnitude;
        out->scale[g] = zero ? 0 : magnitude / steps;
        out->sum[g] = 0;
        for (int d = first; d < first + k->group; d++) {
            const int32_t x = quire__round_product(scaled[d], inverse);
            out->sum[g] += x;
            /* hi is rounded, so lo lies in -64..63; |x| <= 16256 keeps hi in -127..127 */
            const int32_t hi = out->n_planes == 2 ? (x + 64 + 128 * 128) / 128 - 128 : x;
            out->plane[0][d] = (int8_t)hi;
            out->plane[1][d] = (int8_t)(out->n_planes == 2 ? x - 128 * hi : 0);
        }
        out->centre[g] = out->sum[g] * (int32_t)(2 * k->mid);
    }
}

void quire__ref_dot_page(const quire_side_format *k, const quire_int_query *q, const int8_t *codes,
                         int32_t *dots) {
    for (int g = 0; g < k->n_groups; g++)
        for (int t = 0; t < T; t++) {
            const int8_t *c = codes + t * k->dim + g * k->group, *hi = q->plane[0] + g * k->group;
            int32_t sum = 0;
            for (int d = 0; d < k->group; d++)
                sum += hi[d] * c[d];
            if (q->n_planes == 2) {
                const int8_t *lo = q->plane[1] + g * k->group;
                sum *= 128;
                for (int d = 0; d < k->group; d++)
                    sum += lo[d] * c[d];
            }
            dots[g * T + t] = sum;
        }
}

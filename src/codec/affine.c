/* a8 a4 a2 with scale groups of 32, 64, 128 channels: codes, scales and biases are bit for bit
 * those of mlx.core.quantize.
 *
 *     value = scale * code + bias; the scale is negative where the group's largest magnitude is
 *     positive
 *
 * Codes are computed from the unrounded fp32 scale and bias; the record has these rounded to the
 * raw type (f16, bf16, or f32 as they are), and 8-bit codes as code - 128 in two's complement.
 * Parameters: scale[D/g][T], bias[D/g][T].
 */
#include "base/real.h"
#include "codec/family.h"

static void encode(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                   uint8_t *record) {
    const int dim = side->dim, group = side->group, stored_as = side->bits == 8 ? 128 : 0;
    const float top = (float)((1 << side->bits) - 1), smallest_scale = 1e-7f;
    for (int t = skip; t < T; t++)
        for (int g = 0; g < side->n_groups; g++) {
            const float *x = rows + t * dim + g * group;
            float min = x[0], max = x[0];
            for (int i = 1; i < group; i++) {
                if (x[i] < min)
                    min = x[i];
                if (x[i] > max)
                    max = x[i];
            }
            const bool from_min = fabsf(min) > fabsf(max);
            float scale = (max - min) / top;
            if (scale < smallest_scale)
                scale = smallest_scale;
            if (!from_min)
                scale = -scale;
            const float edge = from_min ? min : max, steps = rintf(edge / scale);
            float bias = 0;
            if (steps != 0) {
                scale = edge / steps;
                bias = edge;
            }
            for (int i = 0; i < group; i++) {
                const float code = rintf((x[i] - bias) / scale);
                const int clamped = code <= 0 ? 0 : code >= top ? (int)top : (int)code;
                codes[t * dim + g * group + i] = (uint8_t)(clamped - stored_as);
            }
            quire__put_param(side, record, (size_t)(g * T + t), scale);
            quire__put_param(side, record, (size_t)((side->n_groups + g) * T + t), bias);
        }
}

static void decode(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                   float *rows) {
    const int dim = side->dim;
    for (int t = 0; t < T; t++)
        for (int d = 0; d < dim; d++) {
            const int g = d / side->group;
            const float scale = quire__side_param(side, record, (size_t)(g * T + t));
            const float bias =
                quire__side_param(side, record, (size_t)((side->n_groups + g) * T + t));
            const uint8_t code = side->bits == 8 ? codes[t * dim + d] ^ 0x80 : codes[t * dim + d];
            rows[t * dim + d] = scale * (float)code + bias;
        }
}

const quire_family_ops quire__affine_ops = {
    "affine", "scale and bias per group, as mlx.core.quantize", encode, decode};

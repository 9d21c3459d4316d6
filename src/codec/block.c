/* q8_0 and q4_0: codes and scales are bit for bit those of ggml. One fp16 scale per 32 channels.
 *
 *   q8_0  scale = amax / 127, code = round(x / scale), halves away from zero;      value = scale
 *         * code
 *   q4_0  scale = (value of largest magnitude) / -8, code = trunc(x / scale + 8.5); value =
 *         scale * (code - 8)
 *
 * ggml writes q4_0's x * (1/scale) + 8.5 as a product and a sum; gcc contracts them on machines
 * with fma, and the gguf package reproduces that. So do we: an explicit fma, the same on every
 * machine. Parameters: fp16 scale[D/32][T].
 */
#include "base/real.h"
#include "codec/family.h"

static void encode(const quire_side_format *side, const float *rows, int skip, uint8_t *codes,
                   uint8_t *record) {
    const int dim = side->dim, group = side->group;
    for (int t = skip; t < T; t++)
        for (int g = 0; g < side->n_groups; g++) {
            const float *x = rows + t * dim + g * group;
            uint8_t *code = codes + t * dim + g * group;
            float largest = 0;
            for (int i = 0; i < group; i++)
                if (fabsf(x[i]) > fabsf(largest))
                    largest = x[i];
            const float scale = side->bits == 8 ? fabsf(largest) / 127.0f : largest / -8.0f;
            /* 1/scale of a smaller scale may not be finite. */
            const float inverse = fabsf(scale) > 1e-37f ? 1.0f / scale : 0;
            quire__put_param(side, record, (size_t)(g * T + t), scale);
            for (int i = 0; i < group; i++) {
                if (side->bits == 8) {
                    code[i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
                } else {
                    const int c = (int8_t)fmaf(x[i], inverse, 8.5f);
                    code[i] = (uint8_t)(c < 15 ? c : 15);
                }
            }
        }
}

static void decode(const quire_side_format *side, const uint8_t *codes, const uint8_t *record,
                   float *rows) {
    const int dim = side->dim;
    for (int t = 0; t < T; t++)
        for (int d = 0; d < dim; d++) {
            const float scale = quire__side_param(side, record, (size_t)(d / side->group * T + t));
            const int code = side->bits == 8 ? (int8_t)codes[t * dim + d] : codes[t * dim + d] - 8;
            rows[t * dim + d] = scale * (float)code;
        }
}

const quire_family_ops quire__block_ops = {"block", "one fp16 scale per 32 channels, as ggml",
                                           encode, decode};

/* Dequantizes TurboQuant rows of 4 bits as fast as plain C can: the other way to attend over them,
 * for bench/peer_dequant.py, which compiles this file. A row is level[code] * norm, still rotated;
 * rows of K also have the mean of their page of 64 added. Two codes are in a byte, and a table has
 * the two levels of every byte. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PAGE = 64 };

/* mean: (n_rows / 64, dim), or NULL. pairs: (256, 2) */
void dequantize_f32(const uint8_t *codes, const float *norm, const float *mean, const float *pairs,
                    size_t n_rows, size_t dim, float *out) {
    for (size_t t = 0; t < n_rows; t++, codes += dim / 2, out += dim) {
        for (size_t i = 0; i < dim / 2; i++)
            memcpy(out + 2 * i, pairs + 2 * codes[i], 2 * sizeof *pairs);
        if (mean) {
            const float *m = mean + t / PAGE * dim;
            for (size_t i = 0; i < dim; i++)
                out[i] = out[i] * norm[t] + m[i];
        } else {
            for (size_t i = 0; i < dim; i++)
                out[i] *= norm[t];
        }
    }
}

void dequantize_bf16(const uint8_t *codes, const float *norm, const float *mean, const float *pairs,
                     size_t n_rows, size_t dim, uint16_t *out) {
    float row[1024];
    uint32_t bits[1024];
    for (size_t t = 0; t < n_rows; t++, codes += dim / 2, out += dim) {
        dequantize_f32(codes, norm + t, mean ? mean + t / PAGE * dim : NULL, pairs, 1, dim, row);
        memcpy(bits, row, dim * sizeof *row);
        for (size_t i = 0; i < dim; i++)
            out[i] = (uint16_t)((bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
    }
}

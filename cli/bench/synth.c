/* synth.c: generates normal values as sums of uniform ones from splitmix64. */
#include "bench/synth.h"

#include <stddef.h>

static const uint64_t OFFSET_STREAM = 101; /* different from every cli_stream */

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    uint64_t state = hash ^ value;
    return splitmix64(&state);
}

/* The sum of twelve uniform 16-bit numbers, which has unit variance. Integers until the last step,
 * because log and cos differ in the last bit between machines. */
static float next_normal(uint64_t *state) {
    int32_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t bits = splitmix64(state);
        sum += (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
               (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);
    }
    return (float)(sum - 6 * 65535) / 65536.0f;
}

/* -2 to 2 */
static float next_offset(uint64_t *state) {
    return (float)((int32_t)(splitmix64(state) >> 48) - 32768) / 16384.0f;
}

void cli_synth_head(const cli_synth *synth, int32_t token, int32_t head, float *out) {
    uint64_t place = mix(mix(synth->seed, (uint64_t)synth->layer), (uint64_t)head);
    uint64_t state = mix(mix(place, synth->stream), (uint64_t)token);
    for (int32_t c = 0; c < synth->dim; c++)
        out[c] = next_normal(&state);
    if (synth->stream != CLI_STREAM_K)
        return;
    uint64_t offset_state = mix(place, OFFSET_STREAM);
    for (int32_t c = 0; c < synth->dim; c++)
        out[c] += next_offset(&offset_state);
}

quire_status cli_synth_order(const cli_synth *k_rows, uint16_t *order) {
    quire_status status = QUIRE_OK;
    for (int32_t head = 0; status == QUIRE_OK && head < k_rows->n_heads; head++) {
        float row[QUIRE_DIM_MAX], low[QUIRE_DIM_MAX], high[QUIRE_DIM_MAX], range[QUIRE_DIM_MAX];
        for (int32_t token = 0; token < QUIRE_PAGE_TOKENS; token++) {
            cli_synth_head(k_rows, token, head, row);
            for (int32_t c = 0; c < k_rows->dim; c++) {
                low[c] = token == 0 || row[c] < low[c] ? row[c] : low[c];
                high[c] = token == 0 || row[c] > high[c] ? row[c] : high[c];
                range[c] = high[c] - low[c];
            }
        }
        status =
            quire_channel_order(range, k_rows->dim, order + (size_t)head * (size_t)k_rows->dim);
    }
    return status;
}

void cli_synth_row(const cli_synth *synth, int32_t token, float *out) {
    for (int32_t head = 0; head < synth->n_heads; head++) {
        cli_synth_head(synth, token, head, out + (size_t)head * (size_t)synth->dim);
    }
}

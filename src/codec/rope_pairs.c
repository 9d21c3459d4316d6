/* Pairs of channels that RoPE turns together, from the slowest (not turned at all) to the fastest.
 * error_feedback.c rounds in this order: its error is a tenth smaller than in the reverse order
 * (docs/FIDELITY.md). */
#include <math.h>

#include "base/real.h"
#include "codec/codec.h"

static double frequency(const quire_rope *r, int j) {
    return r->frequency ? (double)r->frequency[j] : pow((double)r->base, -2.0 * j / r->n_rot);
}

static bool is_sound(const quire_rope *r) {
    bool sound = quire__finite(r->scale) &&
                 (r->frequency || r->n_rot == 0 || (quire__finite(r->base) && r->base > 0));
    for (int32_t j = 0; r->frequency && j < r->n_rot / 2; j++)
        sound = sound && quire__finite(r->frequency[j]);
    return sound;
}

static void add(quire_rope_pairs *pairs, int32_t first, int32_t second, double angle) {
    pairs->first[pairs->n] = (uint16_t)first;
    pairs->second[pairs->n] = (uint16_t)second;
    pairs->angle[pairs->n++] = angle;
}

quire_status quire__rope_pairs_init(quire_rope_pairs *pairs, const quire_rope *rope, int32_t dim) {
    static const quire_rope still = {0};
    const quire_rope *r = rope ? rope : &still;
    if (r->n_rot < 0 || r->n_rot % 2 || r->first < 0 || r->first > dim || r->n_rot > dim - r->first)
        return quire__fail(QUIRE_E_INVALID,
                           "%d channels from %d on cannot be turned by RoPE in a head of %d",
                           (int)r->n_rot, (int)r->first, (int)dim);
    if (!is_sound(r))
        return quire__fail(
            QUIRE_E_INVALID,
            "RoPE with base %g and scale %g: base, scale or a frequency is not valid",
            (double)r->base, (double)r->scale);
    const double scale = r->scale != 0 ? (double)r->scale : 1;
    const int32_t half = r->n_rot / 2, end = r->first + r->n_rot;
    pairs->n = 0;
    int32_t lone = -1; /* an unturned channel that still lacks a partner */
    for (int32_t d = 0; d < dim; d++) {
        if (d >= r->first && d < end)
            continue;
        if (lone >= 0)
            add(pairs, lone, d, 0);
        lone = lone >= 0 ? -1 : d;
    }
    for (int32_t j = half - 1; j >= 0; j--) {
        const int32_t first = r->first + (r->interleaved ? 2 * j : j);
        add(pairs, first, r->interleaved ? first + 1 : first + half, scale * frequency(r, j));
    }
    return QUIRE_OK;
}

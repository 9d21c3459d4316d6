/* budget_search.c: greedy. A step may pass over rungs: where losses do not grow evenly, one long
 * step can be cheaper for its bytes than the short one that comes first. */
#include "calibrate/budget_search.h"

#include <math.h>

typedef struct step {
    int32_t layer, rung; /* layer -1: none */
    double price;
} step;

static double bytes_at(const quire__ladders *l, int32_t layer, int32_t rung) {
    return l->bytes[(int64_t)layer * l->n_rungs + rung];
}

static double loss_at(const quire__ladders *l, int32_t layer, int32_t rung) {
    return l->loss[(int64_t)layer * l->n_rungs + rung];
}

/* Summed over all layers each time: accumulated differences would drift. */
static quire__place place_of(const quire__ladders *l, const int32_t *rung) {
    quire__place place = {0, 0};
    for (int32_t i = 0; i < l->n_layers; i++) {
        place.bytes += bytes_at(l, i, rung[i]);
        place.loss += loss_at(l, i, rung[i]);
    }
    return place;
}

static step cheapest_down(const quire__ladders *l, const int32_t *rung, double loss_left) {
    step best = {.layer = -1, .price = INFINITY};
    for (int32_t i = 0; i < l->n_layers; i++)
        for (int32_t r = rung[i] + 1; r < l->n_allowed[i]; r++) {
            const double saved = bytes_at(l, i, rung[i]) - bytes_at(l, i, r);
            const double lost = loss_at(l, i, r) - loss_at(l, i, rung[i]);
            if (saved > 0 && lost <= loss_left && lost / saved < best.price)
                best = (step){i, r, lost / saved};
        }
    return best;
}

/* The step up that gains most among those that fit. */
static step best_up(const quire__ladders *l, const int32_t *rung, double bytes_left) {
    step best = {.layer = -1, .price = 0};
    for (int32_t i = 0; i < l->n_layers; i++)
        for (int32_t r = 0; r < rung[i]; r++) {
            const double gained = loss_at(l, i, rung[i]) - loss_at(l, i, r);
            if (bytes_at(l, i, r) - bytes_at(l, i, rung[i]) <= bytes_left && gained > best.price)
                best = (step){i, r, gained};
        }
    return best;
}

quire__place quire__budget_search(const quire__ladders *l, double max_bytes, double max_loss,
                                  int32_t *rung) {
    for (int32_t i = 0; i < l->n_layers; i++)
        rung[i] = 0;
    quire__place place = place_of(l, rung);
    while (place.bytes > max_bytes) {
        const step down = cheapest_down(l, rung, max_loss - place.loss);
        if (down.layer < 0)
            return place;
        rung[down.layer] = down.rung;
        place = place_of(l, rung);
    }
    for (;;) {
        const step up = best_up(l, rung, max_bytes - place.bytes);
        if (up.layer < 0)
            return place;
        rung[up.layer] = up.rung;
        place = place_of(l, rung);
    }
}

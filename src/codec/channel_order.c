/* The channel order of a K head in km4 and km3.
 *
 *   place     0 .. 7   8 .. 15   16 .. 23   24 .. 31   ...   from 16*(D/32) on
 *   codes     wider    narrower  wider      narrower   ...   plain
 *
 * The 8*(D/32) most important channels get the wider codes, and as many of the least important ones
 * the narrower codes. Within each of the three kinds, channels keep their natural order, so that
 * the same choice always gives the same pages.
 */
#include <math.h>

#include "codec/codec.h"

quire_status quire__check_k_dim(int32_t k_dim) {
    if (k_dim < QUIRE_DIM_MIN || k_dim > QUIRE_DIM_MAX || k_dim % QUIRE_DIM_STEP)
        return quire__fail(QUIRE_E_INVALID,
                           "K head size %d: must be a multiple of %d from %d to %d", (int)k_dim,
                           QUIRE_DIM_STEP, QUIRE_DIM_MIN, QUIRE_DIM_MAX);
    return QUIRE_OK;
}

quire_status quire_channel_order(const float *importance, int32_t k_dim, uint16_t *order) {
    if (!importance || !order)
        return quire__fail(QUIRE_E_INVALID, "importance or order is NULL");
    QUIRE_TRY(quire__check_k_dim(k_dim));
    for (int d = 0; d < k_dim; d++)
        if (isnan(importance[d]))
            return quire__fail(QUIRE_E_VALUE, "the importance of channel %d is not a number", d);
    const int n = k_dim / 32 * 8;
    int wider = 0, narrower = 0, plain = 2 * n;
    for (int d = 0; d < k_dim; d++) {
        int rank = 0; /* channels that come before this one; of equal ones, the lower one */
        for (int other = 0; other < k_dim; other++)
            rank += importance[other] > importance[d] ||
                    (importance[other] == importance[d] && other < d);
        int place;
        if (rank < n) {
            place = wider / 8 * 16 + wider % 8;
            wider++;
        } else if (rank >= k_dim - n) {
            place = narrower / 8 * 16 + 8 + narrower % 8;
            narrower++;
        } else {
            place = plain++;
        }
        order[place] = (uint16_t)d;
    }
    return QUIRE_OK;
}

void quire__into_order(const uint16_t *order, int dim, const float *row, float *placed) {
    for (int p = 0; p < dim; p++)
        placed[p] = row[order[p]];
}

void quire__from_order(const uint16_t *order, int dim, const float *placed, float *row) {
    for (int p = 0; p < dim; p++)
        row[order[p]] = placed[p];
}

int quire__order_fault(const uint16_t *order, int dim) {
    bool seen[QUIRE_DIM_MAX] = {false};
    for (int p = 0; p < dim; p++) {
        if (order[p] >= dim || seen[order[p]])
            return p;
        seen[order[p]] = true;
    }
    return dim;
}

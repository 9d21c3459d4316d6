/* budget_search.h: which rung of a ladder each layer stands on, under a budget. Arithmetic
 * alone. */
#ifndef ENGINE_CALIBRATE_BUDGET_SEARCH_H
#define ENGINE_CALIBRATE_BUDGET_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire__ladders {
    int32_t n_layers, n_rungs;
    const double *bytes, *loss; /* (n_layers, n_rungs) */
    const int32_t *n_allowed;   /* (n_layers) a layer may stand on its first rungs, this many */
} quire__ladders;

typedef struct quire__place {
    double bytes, loss; /* of all layers */
} quire__place;

/* From the first rung down, always by the step that costs least loss for the bytes it saves, until
 * max_bytes is met if possible, and never beyond max_loss. Then up again where max_bytes leaves
 * room. rung: (n_layers). */
quire__place quire__budget_search(const quire__ladders *ladders, double max_bytes, double max_loss,
                                  int32_t *rung);

#endif

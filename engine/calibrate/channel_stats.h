/* channel_stats.h: statistics of K and q for a calibration (calibrate.h), collected by an observer
 * of the session's steps. */
#ifndef ENGINE_CALIBRATE_CHANNEL_STATS_H
#define ENGINE_CALIBRATE_CHANNEL_STATS_H

#include "calibrate/query_moment.h"
#include "graph/graph.h"

/* One KV head of a layer; arrays are (D), moment (D * D). */
typedef struct quire__head_stats {
    float *low, *high; /* of K in the page at hand */
    double *range;     /* of K in a page, summed over pages */
    double *q_square;  /* of all query heads that meet this head, summed over rows */
    double *moment;    /* of the same queries, query_moment.h */
} quire__head_stats;

typedef struct quire__channel_stats {
    const quire_model *model;
    int32_t skip;                 /* first tokens that do not count: they stay raw */
    int32_t position;             /* of the step's first row */
    int32_t n_pages;              /* that are complete */
    quire_rope_pairs *rope_pairs; /* (n_layers); n 0: a rotation that is not of a simple kind */
    quire__head_stats **heads;    /* (n_layers)(G); NULL for a layer that shares another's cache */
    void *memory;
} quire__channel_stats;

quire_status quire__channel_stats_open(quire__channel_stats *stats, const quire_model *model,
                                       int32_t skip); /* E_NOMEM */
void quire__channel_stats_close(quire__channel_stats *stats);
quire__observer
quire__channel_stats_observer(quire__channel_stats *stats); /* to be set in a session */
void quire__channel_stats_advance(quire__channel_stats *stats, int32_t n_rows); /* after a step */

#endif

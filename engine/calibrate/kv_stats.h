/* kv_stats.h: statistics of K, V and q of every layer over a text, for a sensitivity report
 * (sensitivity.c), collected by an observer of the session's steps. */
#ifndef ENGINE_CALIBRATE_KV_STATS_H
#define ENGINE_CALIBRATE_KV_STATS_H

#include "graph/graph.h"

typedef struct quire__layer_sums {
    float *keys; /* (n_tokens, G, DK); NULL for a layer that shares another's cache */
    double v_norm, v_norm_first, v_kurtosis;     /* sums over rows */
    double sink;                                 /* sum over queries */
    int64_t n_values, n_values_first, n_queries; /* rows in these sums */
} quire__layer_sums;

typedef struct quire__kv_stats {
    const quire_model *model;
    int32_t n_tokens;          /* of the text */
    int32_t position;          /* of the step's first row */
    quire__layer_sums *layers; /* (n_layers) */
    double *scores;            /* (n_tokens) scratch */
    void *memory;
} quire__kv_stats;

quire_status quire__kv_stats_open(quire__kv_stats *stats, const quire_model *model,
                                  int32_t n_tokens); /* E_NOMEM */
void quire__kv_stats_close(quire__kv_stats *stats);
quire__observer quire__kv_stats_observer(quire__kv_stats *stats);     /* to be set in a session */
void quire__kv_stats_advance(quire__kv_stats *stats, int32_t n_rows); /* after a step */
/* After the text: all figures of a layer but its loss. */
void quire__kv_stats_sum(const quire__kv_stats *stats, int32_t layer,
                         quire_layer_sensitivity *report);

#endif

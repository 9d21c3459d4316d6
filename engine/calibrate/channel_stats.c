#include "calibrate/channel_stats.h"

#include "model/model_rope.h"

#include <math.h>
#include <stdlib.h>

enum { T = QUIRE_PAGE_TOKENS };

static int32_t source_of(const quire_model *model, int32_t layer) {
    const int32_t share = model->cache[layer].share;
    return share == -1 ? layer : share;
}

static size_t bytes_of_head(int32_t dim) {
    return (size_t)dim * 2 * (sizeof(float) + sizeof(double)) +
           quire__query_moment_size(dim) * sizeof(double);
}

quire_status quire__channel_stats_open(quire__channel_stats *s, const quire_model *model,
                                       int32_t skip) {
    *s = (quire__channel_stats){.model = model, .skip = skip};
    const size_t n = (size_t)model->n_layers;
    size_t bytes = n * (sizeof *s->heads + sizeof *s->rope_pairs);
    for (size_t i = 0; i < n; i++) {
        const quire_layer *l = &model->cache[i];
        if (l->share == -1)
            bytes += (size_t)l->n_kv_heads * (sizeof **s->heads + bytes_of_head(l->k_dim));
    }
    s->memory = calloc(1, bytes);
    if (!s->memory)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    char *at = s->memory;
    s->rope_pairs = (quire_rope_pairs *)(void *)at;
    at += n * sizeof *s->rope_pairs;
    s->heads = (quire__head_stats **)(void *)at;
    at += n * sizeof *s->heads;
    for (size_t i = 0; i < n; i++) {
        const quire_layer *l = &model->cache[i];
        if (quire__rope_is_simple(&model->layers[i].rope))
            quire__rope_pairs_init(&s->rope_pairs[i], &model->ropes[i], l->k_dim);
        if (l->share != -1)
            continue;
        s->heads[i] = (quire__head_stats *)(void *)at;
        at += (size_t)l->n_kv_heads * sizeof **s->heads;
        for (int32_t h = 0; h < l->n_kv_heads; h++) {
            const size_t dim = (size_t)l->k_dim;
            quire__head_stats *head = &s->heads[i][h];
            head->moment = (double *)(void *)at;
            head->range = head->moment + quire__query_moment_size(l->k_dim);
            head->q_square = head->range + dim;
            head->low = (float *)(void *)(head->q_square + dim);
            head->high = head->low + dim;
            at += bytes_of_head(l->k_dim);
        }
    }
    return QUIRE_OK;
}

void quire__channel_stats_close(quire__channel_stats *s) {
    free(s->memory);
    *s = (quire__channel_stats){0};
}

/* A page's figures begin with its first token that counts and are summed up with its last. */
static void add_keys(void *user, int32_t layer, const struct ggml_tensor *k,
                     const struct ggml_tensor *v, int32_t n_rows) {
    (void)v;
    const quire__channel_stats *s = user;
    const quire_layer *l = &s->model->cache[layer];
    for (int32_t h = 0; h < l->n_kv_heads; h++) {
        quire__head_stats *head = &s->heads[layer][h];
        for (int32_t r = 0; r < n_rows; r++) {
            const int32_t t = s->position + r;
            const bool starts = t == s->skip || (t % T == 0 && t > s->skip);
            const float *row = quire__head_row(k, h, r);
            for (int32_t d = 0; d < l->k_dim && t >= s->skip; d++) {
                head->low[d] = starts ? row[d] : fminf(head->low[d], row[d]);
                head->high[d] = starts ? row[d] : fmaxf(head->high[d], row[d]);
                if (t % T == T - 1)
                    head->range[d] += (double)head->high[d] - (double)head->low[d];
            }
        }
    }
}

static void add_queries(void *user, int32_t layer, const struct ggml_tensor *q, int32_t n_rows) {
    const quire__channel_stats *s = user;
    const quire_layer *l = &s->model->cache[layer];
    const int32_t group = l->n_heads / l->n_kv_heads;
    for (int32_t h = 0; h < l->n_heads; h++) {
        quire__head_stats *head = &s->heads[source_of(s->model, layer)][h / group];
        for (int32_t r = 0; r < n_rows; r++) {
            const float *row = quire__head_row(q, h, r);
            if (s->position + r < s->skip)
                continue;
            for (int32_t d = 0; d < l->k_dim; d++)
                head->q_square[d] += (double)row[d] * (double)row[d];
            quire__query_moment_add(head->moment, &s->rope_pairs[layer], row, s->position + r);
        }
    }
}

quire__observer quire__channel_stats_observer(quire__channel_stats *s) {
    return (quire__observer){.on_append = add_keys, .on_queries = add_queries, .user = s};
}

void quire__channel_stats_advance(quire__channel_stats *s, int32_t n_rows) {
    s->position += n_rows;
    s->n_pages = s->position / T;
}

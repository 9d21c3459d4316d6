/* kv_stats.c: K is copied and evaluated at the end; V and q are summed as they arrive. */
#include "calibrate/kv_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST = QUIRE__SINKS,
    QUERY_EARLY = 16, /* queries before it have few others to look at */
    QUERY_STEP = 4    /* every fourth is enough for a mean */
};
static const double WIDE = 3; /* times the median range */

quire_status quire__kv_stats_open(quire__kv_stats *s, const quire_model *model, int32_t n_tokens) {
    *s = (quire__kv_stats){.model = model, .n_tokens = n_tokens};
    const size_t n = (size_t)model->n_layers, rows = (size_t)n_tokens;
    size_t floats = 0;
    for (size_t i = 0; i < n; i++)
        if (model->cache[i].share == -1)
            floats += rows * (size_t)model->cache[i].n_kv_heads * (size_t)model->cache[i].k_dim;
    s->memory =
        calloc(1, n * sizeof *s->layers + rows * sizeof *s->scores + floats * sizeof(float));
    if (!s->memory)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    s->layers = s->memory;
    s->scores = (double *)(void *)(s->layers + n);
    float *at = (float *)(void *)(s->scores + rows);
    for (size_t i = 0; i < n; i++) {
        if (model->cache[i].share != -1)
            continue;
        s->layers[i].keys = at;
        at += rows * (size_t)model->cache[i].n_kv_heads * (size_t)model->cache[i].k_dim;
    }
    return QUIRE_OK;
}

void quire__kv_stats_close(quire__kv_stats *s) {
    free(s->memory);
    *s = (quire__kv_stats){0};
}

void quire__kv_stats_advance(quire__kv_stats *s, int32_t n_rows) { s->position += n_rows; }

/* ------------------------------------------------------------------ rows */

static float *key_of(const quire__kv_stats *s, int32_t layer, int32_t token, int32_t head) {
    const quire_layer *l = &s->model->cache[layer];
    return s->layers[layer].keys +
           ((size_t)token * (size_t)l->n_kv_heads + (size_t)head) * (size_t)l->k_dim;
}

static double norm_of(const float *x, int32_t n) {
    double sum = 0;
    for (int32_t d = 0; d < n; d++)
        sum += (double)x[d] * (double)x[d];
    return sqrt(sum);
}

/* Moments of n numbers, `stride` apart. */
typedef struct moments {
    double mean, deviation, kurtosis, range;
} moments;

static moments moments_of(const float *x, int32_t n, size_t stride) {
    double sum = 0, square = 0, fourth = 0, low = (double)x[0], high = low;
    for (int32_t i = 0; i < n; i++) {
        const double value = (double)x[(size_t)i * stride];
        sum += value;
        low = fmin(low, value);
        high = fmax(high, value);
    }
    const double mean = sum / n;
    for (int32_t i = 0; i < n; i++) {
        const double far = (double)x[(size_t)i * stride] - mean;
        square += far * far;
        fourth += far * far * far * far;
    }
    const double variance = square / n;
    return (moments){.mean = mean,
                     .deviation = sqrt(variance),
                     .kurtosis = variance > 0 ? fourth / n / (variance * variance) : 0,
                     .range = high - low};
}

static void add_rows(void *user, int32_t layer, const struct ggml_tensor *k,
                     const struct ggml_tensor *v, int32_t n_rows) {
    const quire__kv_stats *s = user;
    const quire_layer *l = &s->model->cache[layer];
    quire__layer_sums *sums = &s->layers[layer];
    for (int32_t r = 0; r < n_rows && s->position + r < s->n_tokens; r++) {
        const int32_t t = s->position + r;
        for (int32_t h = 0; h < l->n_kv_heads; h++) {
            memcpy(key_of(s, layer, t, h), quire__head_row(k, h, r),
                   (size_t)l->k_dim * sizeof(float));
            const float *value = quire__head_row(v, h, r);
            if (t < FIRST) {
                sums->v_norm_first += norm_of(value, l->v_dim);
                sums->n_values_first++;
            } else {
                sums->v_norm += norm_of(value, l->v_dim);
                sums->v_kurtosis += moments_of(value, l->v_dim, 1).kurtosis;
                sums->n_values++;
            }
        }
    }
}

/* ---------------------------------------------------------------- attention on the first tokens */

/* A query at t that sees all tokens before it. */
static double first_share(const quire__kv_stats *s, int32_t source, int32_t head, const float *q,
                          int32_t t, double scale) {
    const int32_t dim = s->model->cache[source].k_dim;
    double most = -INFINITY, all = 0, first = 0;
    for (int32_t i = 0; i <= t; i++) {
        const float *key = key_of(s, source, i, head);
        double dot = 0;
        for (int32_t d = 0; d < dim; d++)
            dot += (double)q[d] * (double)key[d];
        s->scores[i] = scale * dot;
        most = fmax(most, s->scores[i]);
    }
    for (int32_t i = 0; i <= t; i++) {
        const double weight = exp(s->scores[i] - most);
        all += weight;
        first += i < FIRST ? weight : 0;
    }
    return first / all;
}

static void add_queries(void *user, int32_t layer, const struct ggml_tensor *q, int32_t n_rows) {
    const quire__kv_stats *s = user;
    const quire_layer *l = &s->model->cache[layer];
    const int32_t source = l->share == -1 ? layer : l->share, group = l->n_heads / l->n_kv_heads;
    const double scale = l->scale != 0 ? (double)l->scale : 1 / sqrt((double)l->k_dim);
    for (int32_t r = 0; r < n_rows && s->position + r < s->n_tokens; r++) {
        const int32_t t = s->position + r;
        if (t < QUERY_EARLY || t % QUERY_STEP != 0 || (l->window > 0 && t >= l->window))
            continue;
        for (int32_t h = 0; h < l->n_heads; h++) {
            s->layers[layer].sink +=
                first_share(s, source, h / group, quire__head_row(q, h, r), t, scale);
            s->layers[layer].n_queries++;
        }
    }
}

quire__observer quire__kv_stats_observer(quire__kv_stats *s) {
    return (quire__observer){.on_append = add_rows, .on_queries = add_queries, .user = s};
}

/* ------------------------------------------------------------------ sums */

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Channels of one K head. */
static void sum_channels(const quire__kv_stats *s, int32_t layer, int32_t head,
                         quire_layer_sensitivity *report) {
    const quire_layer *l = &s->model->cache[layer];
    double sorted[QUIRE_DIM_MAX]; /* ranges */
    for (int32_t d = 0; d < l->k_dim; d++) {
        const moments m = moments_of(key_of(s, layer, FIRST, head) + d, s->n_tokens - FIRST,
                                     (size_t)l->n_kv_heads * (size_t)l->k_dim);
        sorted[d] = m.range;
        report->k_kurtosis += m.kurtosis / ((double)l->k_dim * l->n_kv_heads);
        if (m.deviation > 0)
            report->k_bias = fmax(report->k_bias, fabs(m.mean) / m.deviation);
    }
    qsort(sorted, (size_t)l->k_dim, sizeof *sorted, by_size);
    const double median = sorted[l->k_dim / 2], widest = sorted[l->k_dim - 1];
    if (median > 0 && widest / median > report->k_outlier)
        report->k_outlier = widest / median;
    for (int32_t d = l->k_dim - 1; d >= 0 && sorted[d] > WIDE * median; d--)
        report->n_outliers++;
}

static double mean_norm(const quire__kv_stats *s, int32_t layer, int32_t from, int32_t to) {
    const quire_layer *l = &s->model->cache[layer];
    double sum = 0;
    for (int32_t t = from; t < to; t++)
        for (int32_t h = 0; h < l->n_kv_heads; h++)
            sum += norm_of(key_of(s, layer, t, h), l->k_dim);
    return sum / ((double)(to - from) * l->n_kv_heads);
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

void quire__kv_stats_sum(const quire__kv_stats *s, int32_t layer, quire_layer_sensitivity *report) {
    const quire__layer_sums *sums = &s->layers[layer];
    report->sink = ratio(sums->sink, (double)sums->n_queries);
    if (!sums->keys)
        return;
    report->k_norm = mean_norm(s, layer, FIRST, s->n_tokens);
    report->k_first = ratio(mean_norm(s, layer, 0, FIRST), report->k_norm);
    report->v_norm = ratio(sums->v_norm, (double)sums->n_values);
    report->v_first =
        ratio(ratio(sums->v_norm_first, (double)sums->n_values_first), report->v_norm);
    report->v_kurtosis = ratio(sums->v_kurtosis, (double)sums->n_values);
    for (int32_t h = 0; h < s->model->cache[layer].n_kv_heads; h++)
        sum_channels(s, layer, h, report);
}

#include "cuda_world.h"

#include <math.h>
#include <string.h>

const quire_pair PAIRS[4] = {{QUIRE_CODEC_KM4, QUIRE_CODEC_VT4},
                             {QUIRE_CODEC_KC4, QUIRE_CODEC_VT4},
                             {QUIRE_CODEC_KC8, QUIRE_CODEC_VT4},
                             {QUIRE_CODEC_KC8, QUIRE_CODEC_VT8}};
const int DIMS[5] = {64, 80, 96, 128, 256};

int length_of(const shape *s, int seq) { return s->before[seq] + s->rows[seq]; }
int sealed(int length) { return length > 0 ? (length - 1) / T : 0; }
size_t row_of(const world *w, int seq, int head, int token) {
    return (((size_t)seq * (size_t)w->s.n_kv + (size_t)head) * (size_t)w->longest + (size_t)token) *
           (size_t)w->s.dim;
}

shape shape_of(int n_heads, int n_kv, int dim, quire_pair pair) {
    return (shape){.n_heads = n_heads,
                   .n_kv = n_kv,
                   .dim = dim,
                   .pair = pair,
                   .type = QUIRE_F16,
                   .out = QUIRE_F32,
                   .sinks = 4,
                   .n_seqs = 1,
                   .k_scale = 1,
                   .v_scale = 1,
                   .q_scale = 1,
                   .bias = 1};
}

void world_fill(world *w, const shape *s, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->s = *s;
    w->longest = T;
    for (int i = 0; i < s->n_seqs; i++) {
        w->longest = length_of(s, i) > w->longest ? length_of(s, i) : w->longest;
        w->start[i + 1] = w->start[i] + s->rows[i];
    }
    w->longest = (w->longest + T - 1) / T * T;
    w->n_rows = w->start[s->n_seqs];
    w->n_kv_values = (size_t)s->n_seqs * (size_t)s->n_kv * (size_t)w->longest * (size_t)s->dim;
    w->n_out = (size_t)w->n_rows * (size_t)s->n_heads * (size_t)s->dim;
    rng r = {seed};
    w->k = malloc(w->n_kv_values * sizeof *w->k), w->v = malloc(w->n_kv_values * sizeof *w->v);
    w->q = malloc(w->n_out * sizeof *w->q);
    rng_fill(&r, w->k, w->n_kv_values, s->k_scale);
    rng_fill(&r, w->v, w->n_kv_values, s->v_scale);
    rng_fill(&r, w->q, w->n_out, s->q_scale);
    for (size_t i = 0; i < w->n_kv_values; i++) /* channels have constants, as models' K do */
        w->k[i] += s->bias * s->k_scale * (float)((int)(i % (size_t)s->dim) * 5 % 7 - 3);
    round_rows(s->type, w->k, w->n_kv_values);
    round_rows(s->type, w->v, w->n_kv_values);
    round_rows(s->type, w->q, w->n_out);
    for (int h = 0; h < s->n_heads; h++) {
        w->alibi[h] = 0.02f / (float)(h + 1);
        w->sink_logits[h] = (float)h - 3.0f;
    }
    w->order = random_order(s->n_kv, s->dim);
}

static quire_page_shape page_shape(const world *w) {
    return (quire_page_shape){w->s.pair, w->s.dim, w->s.dim, w->s.type};
}

static void *keep(world *w, void *memory) {
    assert_true(w->n_device < 24);
    return w->device[w->n_device++] = memory;
}

/* Raw rows of all sequences on the device, in slots in reverse order; rows beyond a sequence's are
 * NaN. */
static quire_cuda_rows raw_rows(world *w, int room, const int *first, const int *n) {
    const shape *s = &w->s;
    const size_t count = (size_t)(s->n_seqs * s->n_kv * room) * (size_t)s->dim;
    const int64_t head = (int64_t)room * s->dim;
    quire_cuda_rows rows = {NULL, NULL, head * s->n_kv, head, s->dim, head * s->n_kv, head, s->dim};
    for (int side = 0; side < 2; side++) {
        float *x = malloc(count * sizeof *x);
        for (size_t i = 0; i < count; i++)
            x[i] = NAN;
        for (int seq = 0; seq < s->n_seqs; seq++)
            for (int g = 0; g < s->n_kv; g++)
                memcpy(x + (size_t)(s->n_seqs - 1 - seq) * (size_t)(head * s->n_kv) +
                           (size_t)(g * head),
                       (side ? w->v : w->k) + row_of(w, seq, g, first[seq]),
                       (size_t)(n[seq] * s->dim) * sizeof *x);
        uint16_t *narrow = narrowed(s->type, x, count);
        *(side ? &rows.v : &rows.k) = keep(w, gpu_copy(narrow, count * 2));
        free(narrow), free(x);
    }
    return rows;
}

static void seal_pages(world *w) {
    const shape *s = &w->s;
    const quire_page_shape page = page_shape(w);
    assert_ok(quire_page_bytes(&page, &w->record_bytes));
    const size_t page_bytes = w->record_bytes * (size_t)s->n_kv;
    const int stride = w->longest / T;
    w->n_pages = s->n_seqs * stride;
    w->records = malloc((size_t)(w->n_pages + 1) * page_bytes);
    memset(w->records, 0xff,
           (size_t)(w->n_pages + 1) * page_bytes); /* scales of unused pages are NaN */
    w->pages = malloc((size_t)w->n_pages * sizeof *w->pages);
    rng r = {42};
    for (int i = 0; i < w->n_pages; i++) {
        const int other = rng_below(&r, i + 1);
        w->pages[i] = w->pages[other];
        w->pages[other] = i;
    }
    float *placed = malloc((size_t)(T * s->dim) * sizeof *placed);
    for (int seq = 0; seq < s->n_seqs; seq++)
        for (int i = 0; i < sealed(length_of(s, seq)); i++)
            for (int head = 0; head < s->n_kv; head++) {
                const size_t at = row_of(w, seq, head, i * T);
                rows_into_order(s->pair.k, w->order + head * s->dim, s->dim, w->k + at, placed);
                assert_ok(quire_page_encode(&page, placed, w->v + at, i == 0 ? s->sinks : 0,
                                            w->records +
                                                (size_t)w->pages[seq * stride + i] * page_bytes +
                                                (size_t)head * w->record_bytes));
            }
    free(placed);
}

void world_seal(world *w) {
    const shape *s = &w->s;
    seal_pages(w);
    const size_t page_bytes = w->record_bytes * (size_t)s->n_kv;
    int own_first[MOST_SEQS], own_n[MOST_SEQS], sink_first[MOST_SEQS] = {0}, sink_n[MOST_SEQS];
    int32_t slots[MOST_SEQS], lengths[MOST_SEQS];
    int room = 1;
    for (int seq = 0; seq < s->n_seqs; seq++) {
        lengths[seq] = length_of(s, seq);
        slots[seq] = s->n_seqs - 1 - seq;
        own_first[seq] = s->before[seq] / T * T;
        own_n[seq] = lengths[seq] - own_first[seq];
        sink_n[seq] = lengths[seq] < s->sinks ? lengths[seq] : s->sinks;
        room = own_n[seq] > room ? own_n[seq] : room;
    }
    uint16_t *q = narrowed(s->type, w->q, w->n_out);
    quire_cuda_decode_args *a = &w->decode_args;
    *a = (quire_cuda_decode_args){
        .n_seqs = s->n_seqs,
        .q = keep(w, gpu_copy(q, w->n_out * 2)),
        .out = keep(w, gpu_new(w->n_out * 4, 0xff)),
        .lse = keep(w, gpu_new((size_t)(w->n_rows * s->n_heads) * 4, 0xff)),
        .lengths = keep(w, gpu_copy(lengths, (size_t)s->n_seqs * 4)),
        .pages = keep(w, gpu_copy(w->pages, (size_t)w->n_pages * 4)),
        .pages_stride = w->longest / T,
        .records = {keep(w, gpu_copy(w->records, (size_t)(w->n_pages + 1) * page_bytes)),
                    page_bytes, w->record_bytes},
        .own = raw_rows(w, room, own_first, own_n),
        .sink = raw_rows(w, s->sinks ? s->sinks : 1, sink_first, sink_n),
        .slots = keep(w, gpu_copy(slots, (size_t)s->n_seqs * 4)),
        .k_order = keep(w, gpu_copy(w->order, (size_t)(s->n_kv * s->dim) * 2)),
        .alibi = s->alibi ? keep(w, gpu_copy(w->alibi, (size_t)s->n_heads * 4)) : NULL,
        .sink_logits =
            s->sink_logits ? keep(w, gpu_copy(w->sink_logits, (size_t)s->n_heads * 4)) : NULL};
    w->prefill_args = (quire_cuda_prefill_args){
        .n_seqs = a->n_seqs,
        .q = a->q,
        .out = a->out,
        .lse = a->lse,
        .starts = keep(w, gpu_copy(w->start, (size_t)(s->n_seqs + 1) * 4)),
        .lengths = a->lengths,
        .pages = a->pages,
        .pages_stride = a->pages_stride,
        .records = a->records,
        .own = a->own,
        .sink = a->sink,
        .slots = a->slots,
        .k_order = a->k_order,
        .alibi = a->alibi,
        .sink_logits = a->sink_logits};
    free(q);
}

void world_plan_decode(world *w) {
    const shape *s = &w->s;
    quire_cuda_decode_options o;
    quire_cuda_decode_options_default(&o);
    o.n_heads = s->n_heads, o.n_kv_heads = s->n_kv, o.k_dim = o.v_dim = s->dim;
    o.pair = s->pair, o.raw = s->type, o.out = s->out, o.scale = s->scale, o.sinks = s->sinks;
    o.max_seqs = s->n_seqs, o.window = s->window, o.keep = s->keep, o.softcap = s->softcap;
    o.exact = s->exact;
    assert_gpu(quire_cuda_decode_create(&w->decode, &o));
    w->decode_args.workspace = keep(w, gpu_new(quire_cuda_decode_workspace(w->decode), 0));
}

void world_plan_prefill(world *w) {
    const shape *s = &w->s;
    quire_cuda_prefill_options o;
    quire_cuda_prefill_options_default(&o);
    o.n_heads = s->n_heads, o.n_kv_heads = s->n_kv, o.k_dim = o.v_dim = s->dim;
    o.pair = s->pair, o.raw = s->type, o.out = s->out, o.scale = s->scale, o.sinks = s->sinks;
    o.window = s->window, o.keep = s->keep, o.softcap = s->softcap, o.rows_hint = s->rows_hint;
    assert_gpu(quire_cuda_prefill_create(&w->prefill, &o));
    w->prefill_args.workspace = keep(w, gpu_new(quire_cuda_prefill_workspace(w->prefill), 0xff));
}

void world_move_pages(world *w) {
    const size_t page_bytes = w->record_bytes * (size_t)w->s.n_kv,
                 all = (size_t)(w->n_pages + 1) * page_bytes;
    uint8_t *moved = malloc(all);
    memset(moved, 0xff, all);
    for (int i = 0; i < w->n_pages; i++) {
        const int to = (w->pages[i] + 7) % (w->n_pages + 1);
        memcpy(moved + (size_t)to * page_bytes, w->records + (size_t)w->pages[i] * page_bytes,
               page_bytes);
        w->pages[i] = to;
    }
    memcpy(w->records, moved, all);
    assert_cuda(cudaMemcpy(w->decode_args.records.base, moved, all, cudaMemcpyHostToDevice));
    assert_cuda(cudaMemcpy((void *)w->decode_args.pages, w->pages, (size_t)w->n_pages * 4,
                           cudaMemcpyHostToDevice));
    free(moved);
}

void world_free(world *w) {
    for (int i = 0; i < w->n_device; i++)
        cudaFree(w->device[i]);
    quire_cuda_decode_free(w->decode);
    quire_cuda_prefill_free(w->prefill);
    free(w->k), free(w->v), free(w->q), free(w->records), free(w->pages);
}

/* ------------------------------------------------------------------ the oracle */

/* All sealed pages of a head, decoded: (tokens, dim). */
static void decode_pages(const world *w, int seq, int head, float *k, float *v) {
    const shape *s = &w->s;
    const quire_page_shape page = page_shape(w);
    float *placed = malloc((size_t)(T * s->dim) * sizeof *placed);
    for (int i = 0; i < sealed(length_of(s, seq)); i++) {
        const size_t id = (size_t)w->pages[seq * (w->longest / T) + i],
                     at = (size_t)(i * T * s->dim);
        assert_ok(quire_page_decode(
            &page, w->records + (id * (size_t)s->n_kv + (size_t)head) * w->record_bytes, placed,
            v + at));
        rows_from_order(s->pair.k, w->order + head * s->dim, s->dim, placed, k + at);
    }
    free(placed);
}

static void check_nothing_seen(const world *w, int h, const float *out, float lse) {
    for (int d = 0; d < w->s.dim; d++)
        assert_true(out[d] == 0);
    if (w->s.sink_logits)
        assert_true(fabsf(lse - w->sink_logits[h]) < 1e-5f);
    else
        assert_true(isinf(lse) && lse < 0);
}

/* k, v: the sealed pages of the head. */
static void compare_row(const world *w, int seq, int head, int h, int row, const float *k,
                        const float *v, const float *out, float lse, double *logit, outcome *to) {
    const shape *s = &w->s;
    const int dim = s->dim, i = s->before[seq] + row;
    if (i < 0) {
        check_nothing_seen(w, h, out, lse);
        return;
    }
    const double scale = s->scale > 0 ? (double)s->scale : 1 / sqrt(dim);
    const float *q =
        w->q + ((size_t)(w->start[seq] + row) * (size_t)s->n_heads + (size_t)h) * (size_t)dim;
    double top = s->sink_logits ? (double)w->sink_logits[h] : -INFINITY, sum = 0, noise = 0,
           mean = 0, mean_square = 0, seen = 0;
    int n_seen = 0;
    double *wanted = calloc((size_t)dim, sizeof *wanted),
           *terms = calloc((size_t)i + 1, sizeof *terms);
    float largest = 0; /* not widened in the loop: gcc 12 for aarch64 does not survive that */
    for (int d = 0; d < dim; d++)
        largest = fmaxf(largest, fabsf(q[d]));
    const double tiny = 1.7e-8 * (double)largest * sqrt(dim) * scale;
    for (int t = 0; t <= i; t++) {
        const bool raw = t / T == i / T || t < s->sinks;
        const float *key = raw ? w->k + row_of(w, seq, head, t) : k + t * dim;
        double x = 0, squares = 0;
        for (int d = 0; d < dim; d++) {
            const double term = (double)q[d] * (double)key[d];
            x += term;
            squares += term * term;
        }
        x *= scale;
        terms[t] = raw ? 0 : FP16_ROUNDING * FP16_ROUNDING * squares * scale * scale + tiny * tiny;
        const bool hidden = s->window > 0 && i - t >= s->window && t >= s->keep;
        if (!hidden) {
            n_seen++;
            mean += x;
            mean_square += x * x;
        }
        if (s->softcap > 0)
            x = (double)s->softcap * tanh(x / (double)s->softcap);
        if (s->alibi)
            x += (double)w->alibi[h] * (t - i);
        logit[t] = hidden ? -INFINITY : x;
        top = fmax(top, logit[t]);
    }
    if (s->sink_logits)
        sum = exp((double)w->sink_logits[h] - top);
    for (int t = 0; t <= i; t++) {
        const bool raw = t / T == i / T || t < s->sinks;
        const float *value = raw ? w->v + row_of(w, seq, head, t) : v + t * dim;
        const double p = exp(logit[t] - top);
        sum += p;
        seen += p;
        noise += p * terms[t];
        for (int d = 0; d < dim; d++)
            wanted[d] += p * (double)value[d];
    }
    double error = 0, norm = 0;
    for (int d = 0; d < dim; d++) {
        const double x = wanted[d] / sum;
        norm += x * x;
        error += (out[d] - x) * (out[d] - x);
    }
    free(wanted), free(terms);
    if (!(error < INFINITY))
        fail_msg("sequence %d, row %d, head %d: a result is not finite", seq, row, h);
    to->error += error;
    to->norm += norm;
    to->sigma += mean_square / n_seen - mean / n_seen * (mean / n_seen);
    to->noise += noise / seen;
    to->worst = fmax(to->worst, norm > 0 ? error / norm : 0);
    to->lse_error = fmax(to->lse_error, fabs((double)lse - (top + log(sum))));
    to->largest = fmax(to->largest, (double)largest);
    to->n_rows++;
}

outcome compare(const world *w, const float *out, const float *lse) {
    const shape *s = &w->s;
    const size_t n = (size_t)(w->longest * s->dim);
    const int group = s->n_heads / s->n_kv;
    float *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
    double *logit = malloc((size_t)w->longest * sizeof *logit);
    outcome o = {0};
    for (int seq = 0; seq < s->n_seqs; seq++)
        for (int head = 0; head < s->n_kv; head++) {
            decode_pages(w, seq, head, k, v);
            /* All rows of few; of many, those around pages' and tiles' edges, and some. */
            for (int row = 0; row < s->rows[seq]; row++) {
                const int i = s->before[seq] + row;
                if (s->rows[seq] > 200 && row > 3 && row < s->rows[seq] - 3 && i % T > 1 &&
                    i % T < T - 1 && row % 43)
                    continue;
                for (int g = 0; g < group; g++) {
                    const int h = head * group + g;
                    const size_t at =
                        (size_t)(w->start[seq] + row) * (size_t)s->n_heads + (size_t)h;
                    compare_row(w, seq, head, h, row, k, v, out + at * (size_t)s->dim, lse[at],
                                logit, &o);
                }
            }
        }
    o.sigma = o.n_rows ? sqrt(o.sigma / o.n_rows) : 0;
    o.noise = o.n_rows ? o.noise / o.n_rows : 0;
    free(k), free(v), free(logit);
    return o;
}

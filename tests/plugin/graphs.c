/* graphs.c: what no model does to a cache, or not on purpose, with graphs made by hand: rows set
 * before the first graph and in parts of a row, operations that pages do not know, rows that are no
 * numbers, more threads than the pages have buffers for, longer batches than were planned, too
 * little memory. Every value is known, so that a row in the wrong place shows.
 * usage: graphs EXACT BITS
 *   EXACT   1 if pages hold f16 rows as they are
 *   BITS    what a value takes in a page, on the average of K and V
 * or:    graphs outside
 *   a row for a cell that does not exist: ggml says so, and ends the program */
#include "llama_host.h"

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <ggml-impl.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { D = 64, G = 2, H = 4, ROW = G * D, CELLS = 512, STREAMS = 2, ROWS_MAX = 100 };

/* Values are within 1, and neighbours differ by that much. Eight bits of a rotated row whose sines
 * become one spike of sqrt(D) have steps of 8 / 127. */
static const float NEAR = 0.07f;

static bool exact;
static double worst;
static ggml_backend_dev_t device;

/* A cache of one layer, a copy of what should be in it, and a backend. */
struct cache {
    struct ggml_context *context;
    ggml_backend_buffer_t buffer;
    ggml_backend_t backend;
    struct ggml_tensor *side[2]; /* K, V */
    int64_t n_cells;             /* of a stream; graphs look at the first CELLS of them */
    float *rows[2];              /* (STREAMS * n_cells, ROW) */
};

static float value_at(int side, int64_t cell, int64_t i, int version) {
    double x = (double)(side + 1) * 0.37 + (double)cell * 1.618 + (double)i * 0.7548 + version;
    return (float)sin(x * 12.9898);
}

static float round_f16(float x) { return ggml_fp16_to_fp32(ggml_fp32_to_fp16(x)); }

static struct cache new_cache(int64_t n_cells) {
    struct cache c = {.n_cells = n_cells};
    struct ggml_init_params params = {8 * ggml_tensor_overhead(), NULL, true};
    c.context = ggml_init(params);
    for (int s = 0; s < 2; s++) {
        c.side[s] = ggml_new_tensor_3d(c.context, GGML_TYPE_F16, ROW, n_cells, STREAMS);
        ggml_set_name(c.side[s], s == 0 ? "cache_k_l0" : "cache_v_l0");
        c.rows[s] = calloc((size_t)(STREAMS * n_cells * ROW), sizeof(float));
    }
    c.buffer =
        ggml_backend_alloc_ctx_tensors_from_buft(c.context, ggml_backend_dev_buffer_type(device));
    require(c.buffer != NULL, "no buffer");
    ggml_backend_buffer_clear(c.buffer, 0);
    c.backend = ggml_backend_dev_init(device, NULL);
    return c;
}

static void free_cache(struct cache *c) {
    ggml_backend_free(c->backend);
    ggml_backend_buffer_free(c->buffer);
    ggml_free(c->context);
    for (int s = 0; s < 2; s++)
        free(c->rows[s]);
}

static void set_threads(ggml_backend_t backend, int n) {
    void (*set)(ggml_backend_t, int);
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                      "ggml_backend_set_n_threads");
    memcpy(&set, &address, sizeof set);
    set(backend, n);
}

/* ---------------------------------------------------------------- graphs */

/* A graph's tensors, in host memory: what llama.cpp's inputs are, and more. */
struct graph {
    struct ggml_context *context;
    struct ggml_cgraph *nodes;
    ggml_backend_buffer_t memory;
};

static struct graph begin_long(size_t n_nodes) {
    struct ggml_init_params params = {
        n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false), NULL, true};
    struct graph g = {.context = ggml_init(params)};
    g.nodes = ggml_new_graph_custom(g.context, n_nodes, false);
    return g;
}

static struct graph begin(void) { return begin_long(64); }

static void place(struct graph *g) {
    for (int i = 0; i < ggml_graph_n_nodes(g->nodes); i++)
        ggml_backend_dev_supports_op(device,
                                     ggml_graph_node(g->nodes, i)); /* as a scheduler asks */
    g->memory =
        ggml_backend_alloc_ctx_tensors_from_buft(g->context, ggml_backend_cpu_buffer_type());
    require(g->memory != NULL, "no memory for a graph");
}

static void end(struct graph *g) {
    ggml_backend_buffer_free(g->memory);
    ggml_free(g->context);
}

/* n rows to cells first, first + step, .., and attention of n queries over all cells of a stream,
 * of which each sees those before `seen`. The result is compared with fp64. With `poison` the first
 * row is not a number in the first KV head, and the others do not see it. */
static void step(struct cache *c, int stream, int first, int n, int stride, int seen, int version,
                 bool poison) {
    struct graph g = begin();
    struct ggml_tensor *rows[2], *cells, *q, *mask, *out;
    cells = ggml_new_tensor_1d(g.context, GGML_TYPE_I64, n);
    for (int s = 0; s < 2; s++) {
        rows[s] = ggml_new_tensor_2d(g.context, GGML_TYPE_F32, ROW, n);
        struct ggml_tensor *all = ggml_reshape_2d(g.context, c->side[s], ROW, c->n_cells * STREAMS);
        ggml_build_forward_expand(g.nodes, ggml_set_rows(g.context, all, rows[s], cells));
    }
    q = ggml_new_tensor_4d(g.context, GGML_TYPE_F32, D, n, H, 1);
    mask = ggml_new_tensor_4d(g.context, GGML_TYPE_F16, CELLS, n, 1, 1);
    struct ggml_tensor *view[2];
    for (int s = 0; s < 2; s++) {
        struct ggml_tensor *t = c->side[s];
        view[s] = ggml_permute(g.context,
                               ggml_view_4d(g.context, t, D, G, CELLS, 1, D * 2, t->nb[1], t->nb[2],
                                            (size_t)stream * t->nb[2]),
                               0, 2, 1, 3);
    }
    out = ggml_flash_attn_ext(g.context, q, view[0], view[1], mask, 0.25f, 0.0f, 0.0f);
    ggml_build_forward_expand(g.nodes, out);
    place(&g);
    for (int i = 0; i < n; i++) {
        int64_t cell = stream * c->n_cells + first + i * stride;
        ((int64_t *)cells->data)[i] = cell;
        for (int s = 0; s < 2; s++)
            for (int j = 0; j < ROW; j++) {
                float x = value_at(s, cell, j, version);
                bool bad = poison && i == 0;
                ((float *)rows[s]->data)[i * ROW + j] = bad && j == 3 ? NAN : x;
                c->rows[s][cell * ROW + j] = bad && j < D ? 0 : round_f16(x);
            }
        for (int j = 0; j < CELLS; j++)
            ((ggml_fp16_t *)mask->data)[i * CELLS + j] =
                ggml_fp32_to_fp16(j < seen && !(poison && i > 0 && j == first) ? 0.0f : -INFINITY);
        for (int h = 0; h < H; h++)
            for (int j = 0; j < D; j++)
                ((float *)q->data)[(h * n + i) * D + j] = value_at(7, i, h * D + j, version);
    }
    enum ggml_status status = ggml_backend_graph_compute(c->backend, g.nodes);
    require(status == GGML_STATUS_SUCCESS, "a graph failed with status %d", (int)status);
    require(out->op == GGML_OP_FLASH_ATTN_EXT, "a node was not restored");
    double error = 0, size = 0;
    for (int i = poison ? 1 : 0; i < n; i++)
        for (int h = 0; h < H; h++) {
            double o[D] = {0}, l = 0, logits[CELLS], most = -INFINITY;
            const float *k = c->rows[0] + stream * c->n_cells * ROW + h / (H / G) * D;
            const float *v = c->rows[1] + stream * c->n_cells * ROW + h / (H / G) * D;
            for (int t = 0; t < seen; t++) {
                logits[t] = poison && t == first ? -INFINITY : 0;
                for (int j = 0; j < D; j++)
                    logits[t] += 0.25 * ((float *)q->data)[(h * n + i) * D + j] * k[t * ROW + j];
                most = fmax(most, logits[t]);
            }
            for (int t = 0; t < seen; t++) {
                double p = exp(logits[t] - most);
                l += p;
                for (int j = 0; j < D; j++)
                    o[j] += p * v[t * ROW + j];
            }
            for (int j = 0; j < D; j++) {
                double got = ((float *)out->data)[(i * H + h) * D + j], want = o[j] / l;
                error += (got - want) * (got - want);
                size += want * want;
            }
        }
    for (int i = 0; poison && i < H * D; i++)
        require(isnan(((float *)out->data)[i]), "a row that is no number gave a number");
    if (size > 0)
        worst = fmax(worst, sqrt(error / size));
    require(size == 0 || sqrt(error / size) <= (exact ? 2e-3 : 0.05), "attention is off by %g",
            sqrt(error / size));
    end(&g);
}

/* ---------------------------------------------------------------- rows, by the host */

static void check_rows(struct cache *c, const char *when) {
    ggml_fp16_t *rows = malloc(ggml_nbytes(c->side[0]));
    for (int s = 0; s < 2; s++) {
        ggml_backend_tensor_get(c->side[s], rows, 0, ggml_nbytes(c->side[s]));
        for (int64_t i = 0; i < STREAMS * c->n_cells * ROW; i++) {
            float got = ggml_fp16_to_fp32(rows[i]), want = c->rows[s][i];
            require(fabsf(got - want) <= (exact ? 0 : NEAR),
                    "%s: %s, cell %d, channel %d: %g, not %g", when, s ? "V" : "K", (int)(i / ROW),
                    (int)(i % ROW), (double)got, (double)want);
        }
    }
    free(rows);
}

/* Bytes [offset, offset + size) of a side get the values of `version`. */
static void set_bytes(struct cache *c, int side, size_t offset, size_t size, int version) {
    ggml_fp16_t *values = malloc(size);
    for (size_t i = 0; i < size / 2; i++) {
        size_t at = offset / 2 + i;
        values[i] =
            ggml_fp32_to_fp16(value_at(side, (int64_t)(at / ROW), (int64_t)(at % ROW), version));
        c->rows[side][at] = ggml_fp16_to_fp32(values[i]);
    }
    ggml_backend_tensor_set(c->side[side], values, offset, size);
    free(values);
}

static void rows_before_the_first_graph(void) {
    struct cache c = new_cache(CELLS);
    for (int s = 0; s < 2; s++) {
        set_bytes(&c, s, 0, (size_t)130 * ROW * 2, 1);
        set_bytes(&c, s, (size_t)(CELLS + 7) * ROW * 2, (size_t)90 * ROW * 2, 1);
    }
    check_rows(&c, "before the first graph");
    step(&c, 0, 130, 5, 1, 135, 1, false);
    check_rows(&c, "after the first graph");
    step(&c, 1, 97, 3, 1, 100, 1, false);
    check_rows(&c, "after the second graph");
    free_cache(&c);
}

static void parts_of_rows(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    set_bytes(&c, 0, (size_t)10 * ROW * 2 + 14, 300, 2);
    set_bytes(&c, 1, (size_t)99 * ROW * 2 + 2, 2, 2);
    check_rows(&c, "after parts of rows");
    ggml_fp16_t some[5];
    ggml_backend_tensor_get(c.side[0], some, (size_t)20 * ROW * 2 + 6, sizeof some);
    for (int i = 0; i < 5; i++)
        require(fabsf(ggml_fp16_to_fp32(some[i]) - c.rows[0][20 * ROW + 3 + i]) <= NEAR,
                "a part of a row reads wrong");
    step(&c, 0, 100, 50, 1, 150, 1, false);
    check_rows(&c, "after a graph");
    ggml_backend_tensor_memset(c.side[0], 0, (size_t)5 * ROW * 2, (size_t)3 * ROW * 2);
    memset(c.rows[0] + 5 * ROW, 0, 3 * ROW * sizeof(float));
    check_rows(&c, "after a memset");
    free_cache(&c);
}

static void copies_between_streams(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    step(&c, 0, 100, 60, 1, 160, 1, false);
    struct ggml_init_params params = {8 * ggml_tensor_overhead(), NULL, true};
    struct ggml_context *views = ggml_init(params);
    for (int s = 0; s < 2; s++) {
        struct ggml_tensor *stream[2];
        for (int i = 0; i < 2; i++) {
            stream[i] = ggml_view_2d(views, c.side[s], ROW, CELLS, c.side[s]->nb[1],
                                     (size_t)i * c.side[s]->nb[2]);
            ggml_backend_view_init(stream[i]);
        }
        ggml_backend_tensor_copy(stream[0], stream[1]);
        memcpy(c.rows[s] + (size_t)CELLS * ROW, c.rows[s], (size_t)CELLS * ROW * sizeof(float));
    }
    ggml_free(views);
    check_rows(&c, "after a copy");
    step(&c, 1, 160, 4, 1, 164, 3, false);
    step(&c, 0, 160, 70, 1, 230, 4, false);
    check_rows(&c, "after steps on both");
    free_cache(&c);
}

/* CONT of K: pages do not know it. The layer becomes plain in the middle of its life. */
static void an_unknown_operation(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    step(&c, 1, 0, 70, 1, 70, 1, false);
    struct graph g = begin();
    struct ggml_tensor *copy =
        ggml_cont(g.context, ggml_view_2d(g.context, c.side[0], ROW, CELLS, c.side[0]->nb[1], 0));
    ggml_build_forward_expand(g.nodes, copy);
    place(&g);
    require(ggml_backend_graph_compute(c.backend, g.nodes) == GGML_STATUS_SUCCESS, "CONT failed");
    for (int i = 0; i < CELLS * ROW; i++)
        require(fabsf(ggml_fp16_to_fp32(((ggml_fp16_t *)copy->data)[i]) - c.rows[0][i]) <=
                    (exact ? 0 : NEAR),
                "CONT read another value");
    end(&g);
    check_rows(&c, "after CONT");
    step(&c, 0, 100, 40, 1, 140, 1, false);
    set_bytes(&c, 1, 0, 64 * ROW * 2, 5);
    check_rows(&c, "of a plain layer");
    free_cache(&c);
}

/* Both writes are as ggml makes them, one after the other. */
static void a_side_written_twice(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    struct graph g = begin();
    struct ggml_tensor *rows[2], *cell[2];
    for (int i = 0; i < 2; i++) {
        struct ggml_tensor *all = ggml_reshape_2d(g.context, c.side[0], ROW, CELLS * STREAMS);
        rows[i] = ggml_new_tensor_2d(g.context, GGML_TYPE_F32, ROW, 3);
        cell[i] = ggml_new_tensor_1d(g.context, GGML_TYPE_I64, 3);
        ggml_build_forward_expand(g.nodes, ggml_set_rows(g.context, all, rows[i], cell[i]));
    }
    place(&g);
    for (int i = 0; i < 6; i++) {
        int64_t at = 98 + i; /* the second write does not touch what the first has written */
        ((int64_t *)cell[i / 3]->data)[i % 3] = at;
        for (int j = 0; j < ROW; j++) {
            ((float *)rows[i / 3]->data)[i % 3 * ROW + j] = value_at(0, at, j, 4);
            c.rows[0][at * ROW + j] = round_f16(value_at(0, at, j, 4));
        }
    }
    require(ggml_backend_graph_compute(c.backend, g.nodes) == GGML_STATUS_SUCCESS,
            "two writes failed");
    end(&g);
    check_rows(&c, "after two writes in a graph");
    free_cache(&c);
}

/* Attention that takes the heads of a row together, over pages that have them apart. */
static void other_heads(void) {
    enum { SEEN = 100 };
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, SEEN, 1, SEEN, 1, false);
    struct graph g = begin();
    struct ggml_tensor *q = ggml_new_tensor_4d(g.context, GGML_TYPE_F32, ROW, 1, 1, 1), *view[2];
    for (int s = 0; s < 2; s++)
        view[s] = ggml_view_4d(g.context, c.side[s], ROW, SEEN, 1, 1, c.side[s]->nb[1], ROW * 2,
                               c.side[s]->nb[2], 0);
    struct ggml_tensor *out =
        ggml_flash_attn_ext(g.context, q, view[0], view[1], NULL, 0.25f, 0.0f, 0.0f);
    ggml_build_forward_expand(g.nodes, out);
    place(&g);
    double o[ROW] = {0}, l = 0;
    for (int j = 0; j < ROW; j++)
        ((float *)q->data)[j] = value_at(7, 0, j, 1);
    for (int t = 0; t < SEEN; t++) {
        double logit = 0;
        for (int j = 0; j < ROW; j++)
            logit += 0.25 * ((float *)q->data)[j] * c.rows[0][t * ROW + j];
        l += exp(logit);
        for (int j = 0; j < ROW; j++)
            o[j] += exp(logit) * c.rows[1][t * ROW + j];
    }
    require(ggml_backend_graph_compute(c.backend, g.nodes) == GGML_STATUS_SUCCESS,
            "attention over other heads failed");
    for (int j = 0; j < ROW; j++)
        require(fabs(((float *)out->data)[j] - o[j] / l) < NEAR, "other heads: %g, not %g",
                (double)((float *)out->data)[j], o[j] / l);
    end(&g);
    check_rows(&c, "after attention over other heads");
    free_cache(&c);
}

/* The mask is a view of an input, but the graph adds to that input first, in place: what is hidden
 * is not known when pages are planned. */
static void a_mask_made_in_place(void) {
    enum { SEEN = 100, SHOWN = 40 };
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, SEEN, 1, SEEN, 1, false);
    struct graph g = begin();
    struct ggml_tensor *q = ggml_new_tensor_4d(g.context, GGML_TYPE_F32, D, 1, H, 1), *view[2];
    struct ggml_tensor *input = ggml_new_tensor_4d(g.context, GGML_TYPE_F16, CELLS, 1, 1, 1);
    struct ggml_tensor *bias = ggml_new_tensor_4d(g.context, GGML_TYPE_F16, CELLS, 1, 1, 1);
    struct ggml_tensor *sum = ggml_add_inplace(g.context, input, bias);
    struct ggml_tensor *mask =
        ggml_view_4d(g.context, sum, SEEN, 1, 1, 1, sum->nb[1], sum->nb[2], sum->nb[3], 0);
    for (int s = 0; s < 2; s++)
        view[s] = ggml_permute(g.context,
                               ggml_view_4d(g.context, c.side[s], D, G, SEEN, 1, D * 2,
                                            c.side[s]->nb[1], c.side[s]->nb[2], 0),
                               0, 2, 1, 3);
    struct ggml_tensor *out =
        ggml_flash_attn_ext(g.context, q, view[0], view[1], mask, 0.25f, 0.0f, 0.0f);
    ggml_build_forward_expand(g.nodes, out);
    place(&g);
    memset(q->data, 0, ggml_nbytes(q)); /* all that is seen weighs the same */
    memset(input->data, 0, ggml_nbytes(input));
    for (int i = 0; i < CELLS; i++)
        ((ggml_fp16_t *)bias->data)[i] = ggml_fp32_to_fp16(i < SHOWN ? 0.0f : -INFINITY);
    require(ggml_backend_graph_compute(c.backend, g.nodes) == GGML_STATUS_SUCCESS,
            "a mask made in place failed");
    for (int i = 0; i < H * D; i++) {
        double mean = 0;
        for (int t = 0; t < SHOWN; t++)
            mean += c.rows[1][t * ROW + i / D / (H / G) * D + i % D] / (double)SHOWN;
        require(fabs(((float *)out->data)[i] - mean) < NEAR / 4, "a mask made in place: %g, not %g",
                (double)((float *)out->data)[i], mean);
    }
    end(&g);
    free_cache(&c);
}

static void rows_that_are_no_numbers(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    step(&c, 0, 100, 1, 1, 101, 1, true);
    step(&c, 0, 100, 60, 1, 160, 1, true); /* the others beside it are as they should be */
    check_rows(&c, "beside a row that is no number");
    step(&c, 0, 100, 30, 1, 130, 2, false); /* the same cells, with numbers */
    check_rows(&c, "after rows that are no numbers");
    free_cache(&c);
}

static void many_threads(void) {
    struct cache c = new_cache(CELLS);
    set_threads(c.backend, 1);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    set_threads(c.backend, (int)sysconf(_SC_NPROCESSORS_ONLN) + 1);
    step(&c, 0, 100, 60, 1, 160, 1, false);
    check_rows(&c, "by many threads");
    free_cache(&c);
}

static void count_threads(struct ggml_tensor *out, const struct ggml_tensor *in, int ith, int nth,
                          void *count) {
    (void)out, (void)in;
    if (ith == 0)
        *(int *)count = nth;
}

/* A backend that is never told a number of threads takes the one that another was told last. */
static void threads_of_another(void) {
    ggml_backend_t told = ggml_backend_dev_init(device, NULL),
                   other = ggml_backend_dev_init(device, NULL);
    for (int n = 3; n > 0; n -= 2) {
        int count = 0;
        struct graph g = begin();
        struct ggml_tensor *x = ggml_new_tensor_1d(g.context, GGML_TYPE_F32, 64);
        ggml_build_forward_expand(
            g.nodes, ggml_map_custom1(g.context, x, count_threads, GGML_N_TASKS_MAX, &count));
        place(&g);
        set_threads(told, n);
        require(ggml_backend_graph_compute(other, g.nodes) == GGML_STATUS_SUCCESS,
                "a graph failed");
        require(count == n, "%d threads, not %d", count, n);
        end(&g);
    }
    ggml_backend_free(told);
    ggml_backend_free(other);
}

/* The first graph has few rows and nobody announced more. */
static void longer_batches(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 3, 1, 3, 1, false);
    step(&c, 0, 3, ROWS_MAX, 1, 3 + ROWS_MAX, 1, false);
    step(&c, 0, 3 + ROWS_MAX, 40, 1, 43 + ROWS_MAX, 1, false);
    check_rows(&c, "after a longer batch");
    free_cache(&c);
}

static void cells_out_of_order(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 2, 200, 1, false);
    step(&c, 0, 1, 100, 2, 201, 1, false);
    step(&c, 0, 40, 30, 3, 201, 2, false);
    check_rows(&c, "after cells out of order");
    ggml_backend_buffer_clear(c.buffer, 0);
    for (int s = 0; s < 2; s++)
        memset(c.rows[s], 0, (size_t)STREAMS * CELLS * ROW * sizeof(float));
    check_rows(&c, "after a clear");
    step(&c, 0, 0, 80, 1, 80, 3, false);
    check_rows(&c, "after a clear and a step");
    free_cache(&c);
}

/* While it is on, the process gets no more memory than it has: only what is small, from what malloc
 * has left. */
static void starve(bool on) {
    static struct rlimit usual;
    struct rlimit limit;
    malloc_trim(0);
    if (on)
        getrlimit(RLIMIT_AS, &usual);
    limit = usual;
    if (on)
        limit.rlim_cur = 1 << 20;
    require(setrlimit(RLIMIT_AS, &limit) == 0, "the limit of memory cannot be set");
}

/* So many nodes on a cache that there is no memory to look at them. A graph that llama.cpp computes
 * again has the same uid, and is looked at again all the same. */
static void no_memory_for_a_graph(void) {
    enum { LONG = 1 << 14 };
    struct cache c = new_cache(CELLS);
    set_threads(c.backend, 1); /* they would meet after each of these nodes */
    step(&c, 0, 0, 10, 1, 10, 1, false);
    struct graph g = begin_long(LONG);
    struct ggml_tensor *q = ggml_new_tensor_4d(g.context, GGML_TYPE_F32, D, 1, H, 1), *view[2];
    for (int s = 0; s < 2; s++)
        view[s] = ggml_permute(g.context,
                               ggml_view_4d(g.context, c.side[s], D, G, 64, 1, D * 2,
                                            c.side[s]->nb[1], c.side[s]->nb[2], 0),
                               0, 2, 1, 3);
    for (int i = 0; i < LONG - 16; i++)
        ggml_build_forward_expand(
            g.nodes, ggml_flash_attn_ext(g.context, q, view[0], view[1], NULL, 0.25f, 0.0f, 0.0f));
    struct ggml_tensor *all = ggml_reshape_2d(g.context, c.side[0], ROW, CELLS * STREAMS);
    struct ggml_tensor *rows = ggml_new_tensor_2d(g.context, GGML_TYPE_F32, ROW, 1);
    struct ggml_tensor *cell = ggml_new_tensor_1d(g.context, GGML_TYPE_I64, 1);
    ggml_build_forward_expand(g.nodes, ggml_set_rows(g.context, all, rows, cell));
    place(&g);
    memset(q->data, 0, ggml_nbytes(q));
    *(int64_t *)cell->data = 10;
    for (int i = 0; i < ROW; i++) {
        ((float *)rows->data)[i] = value_at(0, 10, i, 1);
        c.rows[0][10 * ROW + i] = round_f16(value_at(0, 10, i, 1));
    }
    g.nodes->uid = UINT64_MAX;
    starve(true);
    enum ggml_status status = ggml_backend_graph_compute(c.backend, g.nodes);
    starve(false);
    require(status == GGML_STATUS_ALLOC_FAILED, "without memory a graph gave status %d", status);
    status = ggml_backend_graph_compute(c.backend, g.nodes);
    require(status == GGML_STATUS_SUCCESS, "with memory the same graph gave status %d", status);
    end(&g);
    check_rows(&c, "after a graph that had no memory first");
    free_cache(&c);
}

/* A part of a row is copied with all rows that it touches. Without memory for them the layer
 * becomes plain, and the bytes are set all the same. */
static void no_memory_for_parts_of_rows(void) {
    enum { BIG = 32768 };
    struct cache c = new_cache(BIG);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    size_t size = ggml_nbytes(c.side[0]) - 4;
    ggml_fp16_t *values = malloc(size);
    for (size_t i = 0; i < size / 2; i++) {
        float x = value_at(0, (int64_t)((i + 1) / ROW), (int64_t)((i + 1) % ROW), 2);
        values[i] = ggml_fp32_to_fp16(x);
        c.rows[0][i + 1] = round_f16(x);
    }
    starve(true);
    ggml_backend_tensor_set(c.side[0], values, 2, size);
    starve(false);
    free(values);
    check_rows(&c, "after parts of rows without memory");
    step(&c, 0, 100, 40, 1, 140, 3, false);
    check_rows(&c, "after a graph on them");
    free_cache(&c);
}

/* The system refuses to replace the cache's addresses by fresh ones. */
static void no_memory_for_a_clear(void) {
    struct cache c = new_cache(CELLS);
    step(&c, 0, 0, 100, 1, 100, 1, false);
    starve(true);
    ggml_backend_buffer_clear(c.buffer, 0);
    starve(false);
    for (int s = 0; s < 2; s++)
        memset(c.rows[s], 0, (size_t)STREAMS * CELLS * ROW * sizeof(float));
    check_rows(&c, "after a clear without memory");
    step(&c, 0, 0, 80, 1, 80, 3, false);
    check_rows(&c, "after that clear and a step");
    free_cache(&c);
}

static size_t resident(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file && fscanf(file, "%*u %lu", &pages) == 1, "/proc/self/statm cannot be read");
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A cache takes memory as its pages fill, and no more than they need; what `bits` says of a value.
 */
static void memory(double bits) {
    enum { BIG = 32768, PART = 512 };
    struct cache c = new_cache(BIG);
    memset(c.rows[0], 1, STREAMS * BIG * ROW * sizeof(float)); /* resident before, not after */
    memset(c.rows[1], 1, STREAMS * BIG * ROW * sizeof(float));
    step(&c, 0, 0, 100, 1, 100, 1, false);
    size_t before = resident();
    double f16 = 2.0 * STREAMS * BIG * ROW * 2;
    require((double)before >= f16, "the test's own copy is not there");
    for (int64_t cell = 0; cell < STREAMS * BIG; cell += PART)
        for (int s = 0; s < 2; s++)
            set_bytes(&c, s, (size_t)cell * ROW * 2, (size_t)PART * ROW * 2, 1);
    double grown = (double)(resident() - before), want = f16 * bits / 16;
    printf("%.2f MiB for %.2f MiB of f16 rows, %.2f bits each\n", grown / 1048576, f16 / 1048576,
           16 * grown / f16);
    require(grown <= 1.05 * want + (1 << 20), "a full cache is %.0f bytes, not %.0f", grown, want);
    check_rows(&c, "of a full cache");
    free_cache(&c);
}

static void on_abort(const char *message) {
    fprintf(stderr, "%s\n", message);
    _exit(strstr(message, "GGML_ASSERT") ? 0 : 1);
}

/* To a layer that no graph has attended to yet, whose cells are only remembered. */
static void a_cell_that_does_not_exist(void) {
    struct cache c = new_cache(CELLS);
    struct graph g = begin();
    struct ggml_tensor *rows = ggml_new_tensor_2d(g.context, GGML_TYPE_F32, ROW, 1);
    struct ggml_tensor *cell = ggml_new_tensor_1d(g.context, GGML_TYPE_I64, 1);
    struct ggml_tensor *all = ggml_reshape_2d(g.context, c.side[0], ROW, CELLS * STREAMS);
    ggml_build_forward_expand(g.nodes, ggml_set_rows(g.context, all, rows, cell));
    place(&g);
    memset(rows->data, 0, ggml_nbytes(rows));
    *(int64_t *)cell->data = INT64_C(1) << 40;
    ggml_set_abort_callback(on_abort);
    ggml_backend_graph_compute(c.backend, g.nodes);
    require(false, "a row was written to a cell that does not exist");
}

int main(int argc, char **argv) {
    /* Large blocks never come from the heap, whose holes would outlast starve(). */
    mallopt(M_MMAP_THRESHOLD, 1 << 16);
    bool outside = argc == 2 && strcmp(argv[1], "outside") == 0;
    require(argc == 3 || outside, "usage: graphs EXACT BITS | outside");
    device = host_load();
    if (outside)
        a_cell_that_does_not_exist();
    exact = atoi(argv[1]);
    rows_before_the_first_graph();
    parts_of_rows();
    copies_between_streams();
    an_unknown_operation();
    a_side_written_twice();
    other_heads();
    a_mask_made_in_place();
    rows_that_are_no_numbers();
    many_threads();
    threads_of_another();
    longer_batches();
    cells_out_of_order();
    no_memory_for_a_graph();
    no_memory_for_parts_of_rows();
    no_memory_for_a_clear();
    memory(atof(argv[2]));
    printf("worst relative error of attention: %.3g\n", worst);
    return 0;
}

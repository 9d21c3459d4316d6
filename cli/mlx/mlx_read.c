/* mlx_read.c: converts a prompt cache of mlx-lm to a saved cache.
 *
 * Full pages take mlx's codes unchanged. The last tokens, which Quire keeps raw in an open page,
 * are decoded from mlx's codes. A ring becomes a window: tokens return to their positions in the
 * text. */
#include "mlx/mlx_cache.h"

#include "command.h"
#include "output/report.h"

#include <stdlib.h>
#include <string.h>

enum { T = QUIRE_PAGE_TOKENS };

typedef struct conversion {
    cli_mlx_cache mlx;
    quire_layer *layers;
    quire_pool *pool;
    quire_seq *seq;
    uint8_t *page; /* of all layers */
    uint8_t *rows; /* 64 rows of one head in mlx's arrays: codes, then scales, then biases */
    float *k, *v;  /* (64, heads, dim) of one layer's open page, followed by (64, dim) of a head */
} conversion;

static quire_page_shape shape_of(const conversion *c, const cli_mlx_layer *l) {
    return (quire_page_shape){
        {l->side[0].codec, l->side[1].codec}, l->side[0].dim, l->side[1].dim, c->mlx.raw};
}

static int fail(const char *doing, quire_status status) {
    return cli_quire_error(doing, status, NULL);
}

/* ------------------------------------------------------------------ pages */

static size_t row_bytes(const cli_tensor *t) {
    return (size_t)t->dims[3] * cli_tensor_type_bytes(t->type);
}

/* The rows of tokens first..first+63 of one head; missing ones become zeros. */
static void gather(const cli_mlx_layer *l, const cli_tensor *t, int32_t head, int32_t first,
                   uint8_t *to) {
    const size_t n = row_bytes(t);
    const uint8_t *from = t->data + (size_t)head * (size_t)l->n_rows * n;
    for (int32_t i = 0; i < T; i++, to += n) {
        const int32_t row = first + i < l->offset ? cli_mlx_row(l, first + i) : -1;
        if (row < 0)
            memset(to, 0, n);
        else
            memcpy(to, from + (size_t)row * n, n);
    }
}

/* The record of one layer and head in page `page`. */
static quire_status make_record(conversion *c, const cli_mlx_layer *l, int32_t head, int32_t page,
                                uint8_t *record) {
    const quire_page_shape shape = shape_of(c, l);
    for (int which = 0; which < 2; which++) {
        const cli_mlx_side *side = &l->side[which];
        uint8_t *part[3] = {c->rows, c->rows, c->rows};
        for (int i = 0; i < (side->bits ? 3 : 1); i++) {
            part[i] = i ? part[i - 1] + T * row_bytes(&side->rows[i - 1]) : c->rows;
            gather(l, &side->rows[i], head, page * T, part[i]);
        }
        if (!side->bits) { /* a raw record is its rows, V after K */
            const size_t before = which ? T * row_bytes(&l->side[0].rows[0]) : 0;
            memcpy(record + before, c->rows, T * row_bytes(&side->rows[0]));
            continue;
        }
        const quire_arrays arrays = {.codes = part[0], .scales = part[1], .biases = part[2]};
        const quire_status status =
            quire_page_import(&shape, which ? QUIRE_SIDE_V : QUIRE_SIDE_K, &arrays, record);
        if (status != QUIRE_OK)
            return status;
    }
    return QUIRE_OK;
}

static bool same_class(const cli_mlx_layer *a, const cli_mlx_layer *b) {
    return a->rotating == b->rotating && a->keep == b->keep && (!a->rotating || a->size == b->size);
}

/* Builds a page in the order of quire_seq_page_load: classes of layers by their first layer, then
 * layers, then heads (docs/FORMAT.md, 9). */
static int load_page(conversion *c, int32_t page) {
    const cli_mlx_cache *mlx = &c->mlx;
    const size_t bytes = quire_seq_page_bytes(c->pool, page);
    uint8_t *at = c->page;
    quire_status status = QUIRE_OK;
    for (int32_t first = 0; first < mlx->n_layers; first++) {
        bool begins = true;
        for (int32_t i = 0; i < first; i++)
            begins = begins && !same_class(&mlx->layers[i], &mlx->layers[first]);
        for (int32_t i = first; begins && i < mlx->n_layers; i++) {
            const cli_mlx_layer *l = &mlx->layers[i];
            const quire_page_shape shape = shape_of(c, l);
            size_t n = 0;
            if (!same_class(l, &mlx->layers[first]))
                continue;
            if (status == QUIRE_OK)
                status = quire_page_bytes(&shape, &n);
            for (int32_t head = 0; status == QUIRE_OK && head < l->n_kv_heads; head++, at += n)
                status = make_record(c, l, head, page, at);
        }
    }
    if (status == QUIRE_OK)
        status = quire_seq_page_load(c->seq, c->page, bytes);
    return status == QUIRE_OK ? CLI_OK : fail("cannot convert a page", status);
}

/* ------------------------------------------------------------------ the open page */

static quire_status decode_layer(conversion *c, const cli_mlx_layer *l, int32_t page,
                                 int32_t n_rows) {
    const quire_page_shape shape = shape_of(c, l);
    const size_t dk = (size_t)shape.k_dim, dv = (size_t)shape.v_dim, heads = (size_t)l->n_kv_heads;
    float *k = c->k + T * heads * dk, *v = c->v + T * heads * dv;
    for (size_t head = 0; head < heads; head++) {
        quire_status status = make_record(c, l, (int32_t)head, page, c->page);
        if (status == QUIRE_OK)
            status = quire_page_decode(&shape, c->page, k, v);
        if (status != QUIRE_OK)
            return status;
        for (size_t t = 0; t < (size_t)n_rows; t++) {
            memcpy(c->k + (t * heads + head) * dk, k + t * dk, dk * sizeof *k);
            memcpy(c->v + (t * heads + head) * dv, v + t * dv, dv * sizeof *v);
        }
    }
    return QUIRE_OK;
}

static int load_open(conversion *c, int32_t page, int32_t n_rows) {
    quire_batch *batch;
    quire_status status =
        quire_batch_begin(c->pool, &(quire_batch_item){c->seq, n_rows}, 1, &batch);
    for (int32_t i = 0; status == QUIRE_OK && i < c->mlx.n_layers; i++) {
        status = decode_layer(c, &c->mlx.layers[i], page, n_rows);
        if (status == QUIRE_OK)
            status = quire_batch_append(batch, i, (quire_rows){c->k, QUIRE_F32, 0},
                                        (quire_rows){c->v, QUIRE_F32, 0}, 0, 1);
    }
    if (status == QUIRE_OK)
        status = quire_batch_commit(batch, NULL);
    else
        quire_batch_abort(batch);
    return status == QUIRE_OK ? CLI_OK : fail("cannot convert the last tokens", status);
}

/* ------------------------------------------------------------------ all of it */

static int make_pool(conversion *c) {
    const cli_mlx_cache *mlx = &c->mlx;
    c->layers = calloc((size_t)mlx->n_layers, sizeof *c->layers);
    size_t page = 0, raw = 0, open = 0, rows = 0;
    for (int32_t i = 0; c->layers && i < mlx->n_layers; i++) {
        const cli_mlx_layer *l = &mlx->layers[i];
        quire_layer *layer = &c->layers[i];
        quire_layer_default(layer);
        layer->n_heads = layer->n_kv_heads =
            l->n_kv_heads; /* the file does not tell the query heads */
        layer->k_dim = l->side[0].dim;
        layer->v_dim = l->side[1].dim;
        layer->window = l->rotating ? l->size - l->keep : 0;
        layer->keep = l->keep;
        layer->k = l->side[0].codec;
        layer->v = l->side[1].codec;
        const quire_page_shape shape = shape_of(c, l);
        size_t bytes;
        const quire_status status = quire_page_bytes(&shape, &bytes);
        if (status != QUIRE_OK)
            return fail("cannot convert the cache", status);
        const size_t dims = (size_t)(shape.k_dim + shape.v_dim), n = (size_t)l->n_kv_heads;
        page += bytes * n;
        raw += T * dims * sizeof(float) * n;
        open = T * dims * (n + 1) > open ? T * dims * (n + 1) : open;
        rows = T * dims * sizeof(float) * 3 > rows ? T * dims * sizeof(float) * 3 : rows;
    }
    const size_t n_pages = (size_t)mlx->n_tokens / T;
    quire_pool_options o;
    quire_pool_options_default(&o);
    o.layers = c->layers;
    o.n_layers = mlx->n_layers;
    o.policy.sinks = 0;
    o.raw = mlx->raw;
    o.max_seqs = o.max_workers = 1;
    o.max_batch_tokens = T;
    o.max_tokens = mlx->n_tokens + T;
    o.budget_bytes =
        (page + (size_t)mlx->n_layers * 4096) * (n_pages + 2) + 8 * raw + ((size_t)64 << 20);
    quire_status status = c->layers ? quire_pool_create(&c->pool, &o) : QUIRE_E_NOMEM;
    if (status == QUIRE_OK)
        status = quire_seq_create(c->pool, &c->seq);
    c->page = aligned_alloc(64, (page + raw) / 64 * 64 + 64);
    c->rows = malloc(rows);
    c->k = malloc(open * sizeof *c->k);
    c->v = malloc(open * sizeof *c->v);
    if (status == QUIRE_OK && (!c->page || !c->rows || !c->k || !c->v))
        status = QUIRE_E_NOMEM;
    return status == QUIRE_OK ? CLI_OK : fail("cannot create a cache", status);
}

static int save(const conversion *c, const char *path) {
    static const char identity[] = "mlx-lm prompt cache\n";
    quire_save_options o;
    quire_save_options_default(&o);
    o.identity = identity;
    o.identity_bytes = sizeof identity - 1;
    o.any_attention = true;
    const quire_status status = quire_seq_save(c->seq, path, &o);
    return status == QUIRE_OK ? CLI_OK : fail("cannot save the cache", status);
}

int cli_mlx_to_quire(const char *from, const char *to) {
    conversion c = {0};
    int status = cli_mlx_open(&c.mlx, from) ? make_pool(&c) : CLI_FAILURE;
    const int32_t n_pages = c.mlx.n_tokens / T, n_open = c.mlx.n_tokens % T;
    for (int32_t p = 0; status == CLI_OK && p < n_pages; p++)
        status = load_page(&c, p);
    if (status == CLI_OK && n_open > 0)
        status = load_open(&c, n_pages, n_open);
    if (status ==
        CLI_OK) { /* drop the zeros that `gather` wrote for tokens that a ring has dropped */
        const quire_status forgotten = quire_seq_forget(c.seq);
        status = forgotten == QUIRE_OK ? CLI_OK : fail("cannot convert a ring", forgotten);
    }
    if (status == CLI_OK)
        status = save(&c, to);
    quire_pool_free(c.pool);
    void *const owned[] = {c.layers, c.page, c.rows, c.k, c.v};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        free(owned[i]);
    cli_mlx_close(&c.mlx);
    return status;
}

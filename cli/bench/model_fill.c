/* model_fill.c: appends synthetic rows to the sequences of a session. */
#include "bench/model_fill.h"

#include "bench/synth.h"
#include "options/workers.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct filler {
    const cli_fill *options;
    const quire_layer *layers;
    int32_t n_layers;
    cli_workers *workers;
    float *k, *v; /* (max_rows,G,D) of the widest layer */

    /* the open step */
    quire_batch *batch;
    int32_t layer, first_token, n_rows;
    atomic_int status; /* the quire_status of a worker that failed */
} filler;

static void make_rows(const filler *f, cli_stream stream, float *rows, cli_part part) {
    const quire_layer *layer = &f->layers[f->layer];
    const cli_synth synth = {.seed = f->options->seed,
                             .stream = stream,
                             .layer = f->layer,
                             .n_heads = layer->n_kv_heads,
                             .dim = stream == CLI_STREAM_K ? layer->k_dim : layer->v_dim};
    const size_t row_floats = (size_t)synth.n_heads * (size_t)synth.dim;
    for (int32_t row = part.first; row < part.last; row++)
        cli_synth_row(&synth, f->first_token + row, rows + (size_t)row * row_floats);
}

static void make_part(void *user, int32_t ith, int32_t nth) {
    filler *f = user;
    const cli_part part = cli_part_of(f->n_rows, ith, nth);
    make_rows(f, CLI_STREAM_K, f->k, part);
    make_rows(f, CLI_STREAM_V, f->v, part);
}

static void append_part(void *user, int32_t ith, int32_t nth) {
    filler *f = user;
    const quire_rows k = {.data = f->k, .type = QUIRE_F32}, v = {.data = f->v, .type = QUIRE_F32};
    const quire_status status = quire_batch_append(f->batch, f->layer, k, v, ith, nth);
    if (status != QUIRE_OK)
        atomic_store(&f->status, (int)status);
}

static quire_status append_layers(filler *f) {
    quire_status status = QUIRE_OK;
    for (f->layer = 0; status == QUIRE_OK && f->layer < f->n_layers; f->layer++) {
        if (f->layers[f->layer].share >= 0)
            continue; /* it reads the cache of another layer */
        cli_workers_run(f->workers, make_part, f);
        cli_workers_run(f->workers, append_part, f);
        status = (quire_status)atomic_load(&f->status);
    }
    return status;
}

static quire_status fill_step(filler *f, quire_pool *pool, quire_seq *seq, int32_t n_rows) {
    const quire_batch_item item = {.seq = seq, .n_tokens = n_rows};
    f->first_token = quire_seq_length(seq);
    f->n_rows = n_rows;
    quire_status status = quire_batch_begin(pool, &item, 1, &f->batch);
    if (status != QUIRE_OK)
        return status;
    status = append_layers(f);
    if (status == QUIRE_OK)
        return quire_batch_commit(f->batch, NULL);
    quire_batch_abort(f->batch);
    return status;
}

static quire_status fill_steps(filler *f, quire_pool *pool, quire_seq *seq, int32_t n_tokens) {
    const cli_fill *o = f->options;
    quire_status status = QUIRE_OK;
    int32_t length = quire_seq_length(seq);
    while (status == QUIRE_OK && length < n_tokens) {
        /* as a prefill does, end steps at multiples of max_rows */
        const int32_t room = o->max_rows - length % o->max_rows, left = n_tokens - length;
        status = fill_step(f, pool, seq, left < room ? left : room);
        length = quire_seq_length(seq);
        if (status == QUIRE_OK && o->progress)
            o->progress(o->user, length);
        if (status == QUIRE_OK && o->stop && o->stop(o->user))
            status = QUIRE_E_ABORTED;
    }
    return status;
}

static size_t widest(const filler *f, bool of_k) {
    size_t most = 0;
    for (int32_t i = 0; i < f->n_layers; i++) {
        const quire_layer *l = &f->layers[i];
        const size_t n = (size_t)l->n_kv_heads * (size_t)(of_k ? l->k_dim : l->v_dim);
        most = n > most ? n : most;
    }
    return most;
}

quire_status cli_fill_seq(quire_session *session, quire_seq *seq, int32_t n_tokens,
                          const cli_fill *fill) {
    quire_model_info info;
    quire_model_get_info(quire_session_model(session), &info);
    filler f = {.options = fill,
                .layers = quire_session_layers(session),
                .n_layers = info.n_layers,
                .workers = cli_workers_start(fill->n_threads)};
    atomic_init(&f.status, QUIRE_OK);
    f.k = malloc((size_t)fill->max_rows * widest(&f, true) * sizeof *f.k);
    f.v = malloc((size_t)fill->max_rows * widest(&f, false) * sizeof *f.v);
    const quire_status status = f.workers && f.k && f.v
                                    ? fill_steps(&f, quire_session_pool(session), seq, n_tokens)
                                    : QUIRE_E_NOMEM;
    cli_workers_stop(f.workers);
    free(f.k);
    free(f.v);
    return status;
}

/* session.c: a pool and plans; steps over them. */
#include "session/session.h"

#include "graph/row_padding.h"
#include "graph/step_plan.h"
#include "model/calibration.h"
#include "model/model_rope.h"
#include "session/identity.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 256, ROWS_MAX = 1 << 16, SEQS_MAX = 1 << 16 };

struct quire_session {
    const quire_model *model;
    quire_session_options options;
    quire_layer *layers; /* (n_layers) as the pool sees them */
    quire_pool *pool;
    quire__step step;
    quire__plans plans;
    quire__row_padding padding;
    quire__plan *last;       /* where the logits of the last step lie */
    int32_t n_logits;        /* of it */
    quire_batch_item *items; /* (max_seqs) scratch */
    char *identity;          /* NULL: nobody has asked yet */
};

void quire_session_options_default(quire_session_options *options) {
    if (!options)
        return;
    *options = (quire_session_options){.struct_size = sizeof *options,
                                       .raw = QUIRE_F16,
                                       .max_seqs = 1,
                                       .max_rows = 512,
                                       .max_logits = 64,
                                       .n_threads = 1,
                                       .exact_trim = true};
    quire_policy_parse("none", &options->policy);
}

/* ------------------------------------------------------------------ life */

static quire_status check_range(const char *name, int32_t value, int32_t min, int32_t max) {
    if (value >= min && value <= max)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_INVALID, "%s is %d, not %d to %d", name, (int)value, (int)min,
                       (int)max);
}

static quire_status check_options(const quire_session_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set by quire_session_options_default");
    QUIRE_TRY(check_range("context", o->context, 0, INT32_MAX / 2));
    QUIRE_TRY(check_range("max_seqs", o->max_seqs, 1, SEQS_MAX));
    QUIRE_TRY(check_range("full_seqs", o->full_seqs, 0, o->max_seqs));
    QUIRE_TRY(check_range("max_rows", o->max_rows, QUIRE_PAGE_TOKENS, ROWS_MAX));
    QUIRE_TRY(check_range("max_logits", o->max_logits, 1, o->max_rows));
    QUIRE_TRY(check_range("n_threads", o->n_threads, 1, THREADS_MAX));
    QUIRE_TRY(check_range("keep", o->keep, 0, INT32_MAX / 2));
    if (o->max_rows % QUIRE_PAGE_TOKENS != 0)
        return quire__fail(QUIRE_E_INVALID, "max_rows is %d, not a multiple of %d",
                           (int)o->max_rows, QUIRE_PAGE_TOKENS);
    if (o->max_kv != 0)
        QUIRE_TRY(check_range("max_kv", o->max_kv, o->keep + 1, INT32_MAX / 2));
    return QUIRE_OK;
}

/* A layer that gets a window only to bound the cache is packed as the policy packs
 * full-attention layers. */
static void bound_layer(const quire_session_options *o, int32_t n_layers, int32_t i,
                        quire_layer *layer) {
    const bool edge = i < o->policy.edge_first || i >= n_layers - o->policy.edge_last;
    const quire_pair pair = edge ? o->policy.edge : o->policy.pair;
    layer->window = o->max_kv - o->keep;
    layer->keep = o->keep;
    layer->k = pair.k;
    layer->v = pair.v;
}

/* The order that the caller has for a layer of this shape, or NULL. */
static const uint16_t *given_order(const quire_session_options *o, const quire_layer *layer,
                                   int32_t i) {
    const quire_layer *from = o->order_from ? &o->order_from[i] : NULL;
    return from && from->n_kv_heads == layer->n_kv_heads && from->k_dim == layer->k_dim
               ? from->k_order
               : NULL;
}

bool quire_session_needs_calibration(const quire_model *model, const quire_session_options *o) {
    if (!model || !o)
        return false;
    bool needed = quire_codec_is_ordered(o->policy.pair.k) ||
                  quire_codec_is_ordered(o->policy.windowed.k) ||
                  quire_codec_is_ordered(o->policy.edge.k);
    for (int32_t i = 0; i < model->n_layers && o->layers; i++)
        needed = needed || quire_codec_is_ordered(o->layers[i].k);
    return needed;
}

/* Orders of channels come from the caller where it gives them, else from the calibration, as does
 * the feedback of rounding errors. */
static quire_status order_channels(const quire_session *session, quire_layer *layers) {
    const quire_session_options *o = &session->options;
    const quire_model *model = session->model;
    if (!quire_session_needs_calibration(model, o))
        return QUIRE_OK;
    if (!o->calibration)
        return quire__fail(QUIRE_E_INVALID,
                           "codecs km4 and km3 need quire_session_options.calibration: "
                           "quire_model_calibrate makes one");
    if (!quire__calibration_fits(o->calibration, model))
        return quire__fail(QUIRE_E_INVALID, "the calibration is of a model with other layers");
    for (int32_t i = 0; i < model->n_layers; i++) {
        const quire__layer_calibration *own = &o->calibration->layers[i];
        const uint16_t *given = given_order(o, &layers[i], i);
        layers[i].k_order = given ? given : own->order;
        layers[i].k_feedback = o->plain_rounding ? NULL : own->feedback;
        layers[i].k_rope = quire__rope_is_simple(&model->layers[i].rope) ? &model->ropes[i] : NULL;
    }
    return QUIRE_OK;
}

static quire_status price_pool(quire_pool_options pool, int32_t full_seqs, size_t *bytes) {
    if (full_seqs > 0)
        pool.max_seqs = full_seqs;
    return quire_pool_price(&pool, bytes);
}

static quire_status create_pool(quire_session *session) {
    const quire_model *model = session->model;
    const quire_session_options *o = &session->options;
    const size_t n = (size_t)model->n_layers;
    quire_layer *layers = session->layers = malloc(n * sizeof *layers);
    if (!layers)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    memcpy(layers, model->cache, n * sizeof *layers);
    for (int32_t i = 0; i < model->n_layers; i++) {
        if (o->max_kv > 0 && layers[i].window == 0)
            bound_layer(o, model->n_layers, i, &layers[i]);
        if (!o->layers)
            continue;
        if (o->layers[i].k != QUIRE_CODEC_DEFAULT)
            layers[i].k = o->layers[i].k;
        if (o->layers[i].v != QUIRE_CODEC_DEFAULT)
            layers[i].v = o->layers[i].v;
    }
    QUIRE_TRY(order_channels(session, layers));
    quire_pool_options pool;
    quire_pool_options_default(&pool);
    pool.layers = layers;
    pool.n_layers = model->n_layers;
    pool.policy = o->policy;
    pool.raw = o->raw;
    pool.max_seqs = o->max_seqs;
    pool.max_tokens = o->context;
    pool.max_batch_tokens = o->max_rows;
    pool.max_workers = o->n_threads;
    pool.exact_trim = o->exact_trim;
    pool.budget_bytes = o->kv_bytes;
    if (pool.budget_bytes == 0)
        QUIRE_TRY(price_pool(pool, o->full_seqs, &pool.budget_bytes));
    const quire_status status = quire_pool_create(&session->pool, &pool);
    for (int32_t i = 0; i < model->n_layers; i++)
        layers[i].k_order = NULL, layers[i].k_feedback = NULL,
        layers[i].k_rope = NULL; /* the pool has copied them */
    return status;
}

/* Asked by ggml between nodes. */
static bool stop(void *user) {
    quire_session *session = user;
    return atomic_load_explicit(&session->step.failure, memory_order_relaxed) != QUIRE_OK ||
           (session->options.stop && session->options.stop(session->options.stop_user));
}

static quire_status open_session(quire_session *session) {
    quire_session_options *o = &session->options;
    if (o->context == 0)
        o->context = session->model->context;
    session->items = calloc((size_t)o->max_seqs, sizeof *session->items);
    if (!session->items)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    QUIRE_TRY(create_pool(session));
    quire__row_padding_init(&session->padding, session->model, o->n_threads);
    const int32_t max_out = quire__row_padding_rows(&session->padding, o->max_logits, o->max_rows);
    return quire__plans_open(&session->plans, session->model, &session->step, o->max_rows, max_out,
                             o->n_threads, stop, session);
}

quire_status quire_session_create(quire_session **result, const quire_model *model,
                                  const quire_session_options *options) {
    if (!result || !model || !options)
        return quire__fail(QUIRE_E_INVALID, "session, model or options is NULL");
    *result = NULL;
    QUIRE_TRY(check_options(options));
    quire_session *session = calloc(1, sizeof *session);
    if (!session)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    session->model = model;
    session->options = *options;
    const quire_status status = open_session(session);
    session->options.layers = NULL; /* borrowed */
    session->options.order_from = NULL;
    session->options.calibration = NULL;
    if (status != QUIRE_OK) {
        quire_session_free(session);
        return status;
    }
    *result = session;
    return QUIRE_OK;
}

void quire_session_free(quire_session *session) {
    if (!session)
        return;
    quire_session_abort(session);
    quire__plans_close(&session->plans);
    quire_pool_free(session->pool);
    free(session->layers);
    free(session->items);
    free(session->identity);
    free(session);
}

void quire__session_observe(quire_session *session, quire__observer observer) {
    session->step.observer = observer;
}

quire_pool *quire_session_pool(const quire_session *session) { return session->pool; }
const quire_model *quire_session_model(const quire_session *session) { return session->model; }
const quire_layer *quire_session_layers(const quire_session *session) { return session->layers; }
quire_status quire_session_identity(quire_session *session, const char **text) {
    if (!session || !text)
        return quire__fail(QUIRE_E_INVALID, "session or text is NULL");
    const quire_status status =
        session->identity ? QUIRE_OK : quire__session_identity(session, &session->identity);
    *text = session->identity;
    return status;
}
int32_t quire_session_context(const quire_session *session) { return session->options.context; }
size_t quire_session_compute_bytes(const quire_session *session) {
    return quire__plans_bytes(&session->plans);
}

/* ------------------------------------------------------------------ a step */

quire_status quire__session_check_idle(const quire_session *session) {
    return session->step.batch ? quire__fail(QUIRE_E_STATE, "the last step is still open")
                               : QUIRE_OK;
}

quire_status quire__session_check_tokens(const quire_session *session, const int32_t *tokens,
                                         int32_t n_tokens) {
    for (int32_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= session->model->n_vocab)
            return quire__fail(QUIRE_E_INVALID, "token %d is not one of %d", (int)tokens[i],
                               (int)session->model->n_vocab);
    return QUIRE_OK;
}

typedef struct step_shape {
    int32_t n_rows, n_logits;
} step_shape;

static quire_status check_item(const quire_session *session, const quire_step_item *item,
                               step_shape *shape) {
    const quire_session_options *o = &session->options;
    if (!item->seq || item->n_tokens < 1 || !item->tokens)
        return quire__fail(QUIRE_E_INVALID, "an item has no sequence or no tokens");
    if (item->n_logits < 0 || item->n_logits > item->n_tokens)
        return quire__fail(QUIRE_E_INVALID, "logits of %d rows were asked from %d tokens",
                           (int)item->n_logits, (int)item->n_tokens);
    QUIRE_TRY(quire__session_check_tokens(session, item->tokens, item->n_tokens));
    const int32_t length = quire_seq_length(item->seq);
    if (item->n_tokens > o->context - length)
        return quire__fail(QUIRE_E_TOO_BIG, "%d tokens after %d do not fit into a context of %d",
                           (int)item->n_tokens, (int)length, (int)o->context);
    if (item->n_tokens > o->max_rows - shape->n_rows)
        return quire__fail(QUIRE_E_TOO_BIG, "a step has more than %d rows", (int)o->max_rows);
    if (item->n_logits > o->max_logits - shape->n_logits)
        return quire__fail(QUIRE_E_TOO_BIG, "a step asks for logits of more than %d rows",
                           (int)o->max_logits);
    shape->n_rows += item->n_tokens;
    shape->n_logits += item->n_logits;
    return QUIRE_OK;
}

/* Padding repeats token 0 at position 0, and the last row of those with logits. */
static void fill_inputs(const quire__plan *plan, const quire_step_item *items, size_t n_items) {
    int32_t *tokens = plan->tokens->data, *positions = plan->positions->data;
    int32_t *out_rows = plan->out_rows ? plan->out_rows->data : NULL;
    int32_t row = 0, out = 0;
    for (size_t i = 0; i < n_items; i++) {
        const quire_step_item *item = &items[i];
        const int32_t length = quire_seq_length(item->seq);
        for (int32_t t = 0; t < item->n_tokens; t++, row++) {
            tokens[row] = item->tokens[t];
            positions[row] = length + t;
            if (t >= item->n_tokens - item->n_logits)
                out_rows[out++] = row;
        }
    }
    for (; row < plan->n_rows; row++)
        tokens[row] = positions[row] = 0;
    for (; out < plan->n_out; out++)
        out_rows[out] = out_rows[out - 1];
}

static quire_status run(quire_session *session, quire__plan *plan) {
    atomic_store(&session->step.failure, QUIRE_OK);
    const bool finished = quire__plan_run(&session->plans, plan);
    const quire_status failure = (quire_status)atomic_load(&session->step.failure);
    if (failure != QUIRE_OK)
        return quire__fail(failure, "%s", quire_batch_error(session->step.batch));
    return finished ? QUIRE_OK : quire__fail(QUIRE_E_ABORTED, "the step was stopped");
}

quire_status quire_session_eval(quire_session *session, const quire_step_item *items,
                                size_t n_items, bool exact) {
    QUIRE_TRY(quire__session_check_idle(session));
    if (n_items < 1 || n_items > (size_t)session->options.max_seqs)
        return quire__fail(QUIRE_E_INVALID, "a step has %zu items, not 1 to %d", n_items,
                           (int)session->options.max_seqs);
    step_shape shape = {0, 0};
    for (size_t i = 0; i < n_items; i++) {
        QUIRE_TRY(check_item(session, &items[i], &shape));
        session->items[i] = (quire_batch_item){.seq = items[i].seq, .n_tokens = items[i].n_tokens};
    }
    const int32_t n_rows =
        exact ? quire__row_padding_rows(&session->padding, shape.n_rows, session->options.max_rows)
              : shape.n_rows;
    const int32_t n_out =
        exact && shape.n_logits > 0
            ? quire__row_padding_rows(&session->padding, shape.n_logits, session->options.max_rows)
            : shape.n_logits;
    quire__plan *plan;
    session->last = NULL;
    QUIRE_TRY(quire__plans_get(&session->plans, n_rows, n_out, &plan));
    fill_inputs(plan, items, n_items);
    QUIRE_TRY(quire_batch_begin(session->pool, session->items, n_items, &session->step.batch));
    session->step.n_rows = shape.n_rows;
    const quire_status status = run(session, plan);
    if (status != QUIRE_OK) {
        quire_session_abort(session);
        return status;
    }
    session->last = plan;
    session->n_logits = shape.n_logits;
    return QUIRE_OK;
}

quire_status quire_session_commit(quire_session *session, const int32_t *n_accept) {
    if (!session->step.batch)
        return quire__fail(QUIRE_E_STATE, "no step is open");
    QUIRE_TRY(quire_batch_commit(session->step.batch, n_accept));
    session->step.batch = NULL;
    return QUIRE_OK;
}

void quire_session_abort(quire_session *session) {
    quire_batch_abort(session->step.batch);
    session->step.batch = NULL;
}

quire_status quire_session_decode(quire_session *session, const quire_step_item *items,
                                  size_t n_items, bool exact) {
    QUIRE_TRY(quire_session_eval(session, items, n_items, exact));
    const quire_status status = quire_session_commit(session, NULL);
    if (status != QUIRE_OK)
        quire_session_abort(session);
    return status;
}

/* The length at which a sequence no longer has all that a query behind `length` tokens sees through
 * this window. */
static int32_t length_of_loss(int32_t length, int32_t window) {
    const int32_t first = length < window ? 0 : length - window + 1;
    return (first / QUIRE_PAGE_TOKENS + 1) * QUIRE_PAGE_TOKENS + window - 1;
}

int32_t quire__session_exact_rows(const quire_session *session, const quire_seq *seq) {
    const int32_t length = quire_seq_length(seq), shortest = length + 1;
    /* A page is sealed where a window of one token leaves it. */
    int32_t loss = session->options.exact_trim ? INT32_MAX : length_of_loss(shortest, 1);
    for (int32_t i = 0; i < session->model->n_layers; i++) {
        const int32_t window = session->layers[i].window;
        if (window > 0 && length_of_loss(shortest, window) < loss)
            loss = length_of_loss(shortest, window);
    }
    return loss - 1 - length;
}

quire_status quire_session_prefill(quire_session *session, quire_seq *seq, const int32_t *tokens,
                                   int32_t n_tokens, void (*progress)(void *user, int32_t done),
                                   void *user) {
    if (!seq || !tokens || n_tokens < 1)
        return quire__fail(QUIRE_E_INVALID, "a prompt needs a sequence and at least one token");
    return quire__session_prefill(session, seq, tokens, n_tokens, session->options.max_rows,
                                  progress, user);
}

quire_status quire__session_prefill(quire_session *session, quire_seq *seq, const int32_t *tokens,
                                    int32_t n_tokens, int32_t step_rows,
                                    void (*progress)(void *user, int32_t done), void *user) {
    const int32_t max_rows = session->options.max_rows,
                  chunk = step_rows < max_rows ? step_rows : max_rows;
    if (n_tokens > session->options.context - quire_seq_length(seq))
        return quire__fail(
            QUIRE_E_TOO_BIG, "a prompt of %d tokens after %d does not fit into a context of %d",
            (int)n_tokens, (int)quire_seq_length(seq), (int)session->options.context);
    for (int32_t done = 0; done < n_tokens;) {
        int32_t n = chunk - quire_seq_length(seq) % chunk;
        n = n < n_tokens - done ? n : n_tokens - done;
        const quire_step_item item = {
            .seq = seq, .tokens = tokens + done, .n_tokens = n, .n_logits = done + n == n_tokens};
        QUIRE_TRY(quire_session_decode(session, &item, 1, true));
        done += n;
        if (progress)
            progress(user, done);
    }
    return QUIRE_OK;
}

const float *quire_session_logits(const quire_session *session, int32_t row) {
    if (!session->last || row < 0 || row >= session->n_logits)
        return NULL;
    return (const float *)session->last->logits->data +
           (size_t)row * (size_t)session->model->n_vocab;
}

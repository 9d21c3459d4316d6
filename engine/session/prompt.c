/* prompt.c: prefix reuse. A prompt becomes a sequence: its longest prefix that is already computed
 * is mapped, from the live sequence or from a store; the rest is prefilled, and its pages go into
 * the store as they fill. */
#include "session/clock.h"
#include "session/session.h"

#if QUIRE_STORE
#include "quire_store.h"
#endif

#include <string.h>

enum { PAGE = QUIRE_PAGE_TOKENS };

void quire_prompt_options_default(quire_prompt_options *options) {
    if (options)
        *options = (quire_prompt_options){.struct_size = sizeof *options};
}

typedef struct prompt {
    quire_session *session;
    quire_seq **seq;
    const int32_t *tokens;
    int32_t n_tokens;
    const quire_prompt_options *options;
    quire_prompt_result *result;
} prompt;

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* ------------------------------------------------------------------ the live sequence */

/* How much of it the prompt can use: as far as the tokens agree, but one must be left to compute. A
 * cut inside a full page before the open one is not exact: then that page is computed again. */
static int32_t common_tokens(const prompt *p) {
    const quire_prompt_options *o = p->options;
    const int32_t most = smaller(o->n_held, p->n_tokens - 1);
    int32_t n = 0;
    while (n < most && o->held[n] == p->tokens[n])
        n++;
    return o->exact && n / PAGE < o->n_held / PAGE ? n - n % PAGE : n;
}

/* Cuts it to the prefix, or frees it if nothing of it is of use: a window may have moved on. */
static void map_live(const prompt *p, int32_t n) {
    if (!*p->seq)
        return;
    if (n > 0 && quire_seq_trim(*p->seq, n) == QUIRE_OK) {
        p->result->n_reused = n;
        return;
    }
    quire_seq_free(*p->seq);
    *p->seq = NULL;
}

/* ------------------------------------------------------------------ the store */

#if QUIRE_STORE

static quire_status text_of(quire_session *session, const quire_prompt_options *options,
                            const int32_t *tokens, int32_t n_tokens, quire_store_text *text) {
    const char *identity;
    QUIRE_TRY(quire_session_identity(session, &identity));
    *text = (quire_store_text){.identity = identity,
                               .identity_bytes = strlen(identity),
                               .tokens = tokens,
                               .n_tokens = n_tokens,
                               .salt = options->store_salt,
                               .salt_bytes = options->store_salt_bytes};
    return QUIRE_OK;
}

/* How many tokens of the prompt the store has; 0 also if it cannot be asked. */
static int32_t stored_tokens(const prompt *p) {
    quire_store_text text;
    quire_store_key key;
    int32_t n = 0;
    if (text_of(p->session, p->options, p->tokens, p->n_tokens - 1, &text) != QUIRE_OK ||
        quire_store_find(p->options->store, quire_session_pool(p->session), &text, &key, &n) !=
            QUIRE_OK)
        return 0;
    return n;
}

static quire_status map_stored(const prompt *p) {
    quire_store_text text;
    quire_status status = text_of(p->session, p->options, p->tokens, p->n_tokens, &text);
    if (status == QUIRE_OK)
        status =
            quire_store_get(p->options->store, quire_session_pool(p->session), &text, 1, p->seq);
    p->result->store_status = status;
    QUIRE_TRY(status);
    p->result->n_reused = p->result->n_from_store = quire_seq_length(*p->seq);
    return QUIRE_OK;
}

/* Another process holds the room, or a disk is full: the next call may succeed. */
static bool is_passing(quire_status status) {
    return status == QUIRE_E_BUSY || status == QUIRE_E_IO || status == QUIRE_E_NOMEM;
}

static quire_status put(quire_session *session, const quire_seq *seq, const int32_t *tokens,
                        int32_t n_tokens, const quire_prompt_options *options,
                        quire_prompt_result *result) {
    quire_store_text text;
    quire_store_added added = {0};
    quire_status status = text_of(session, options, tokens, n_tokens, &text);
    if (status == QUIRE_OK)
        status = quire_store_put(options->store, seq, &text, &added);
    result->pages_added += added.pages;
    result->bytes_added += added.bytes;
    const bool is_new = status != QUIRE_OK && status != result->store_status;
    result->store_status = status;
    if (is_new && options->on_store_error)
        options->on_store_error(options->user, status, is_passing(status));
    return status;
}

#else

static int32_t stored_tokens(const prompt *p) {
    (void)p;
    return 0;
}

static quire_status map_stored(const prompt *p) {
    (void)p;
    return QUIRE_E_UNSUPPORTED; /* refused before */
}

static bool is_passing(quire_status status) { return status == QUIRE_OK; }

static quire_status put(quire_session *session, const quire_seq *seq, const int32_t *tokens,
                        int32_t n_tokens, const quire_prompt_options *options,
                        quire_prompt_result *result) {
    (void)session, (void)seq, (void)tokens, (void)n_tokens, (void)options, (void)result;
    return QUIRE_E_UNSUPPORTED;
}

#endif

quire_status quire_session_put(quire_session *session, const quire_seq *seq, const int32_t *tokens,
                               int32_t n_tokens, const quire_prompt_options *options,
                               quire_prompt_result *result) {
    if (!session || !seq || !tokens || n_tokens < 1 || !options || !result)
        return quire__fail(QUIRE_E_INVALID, "an argument is NULL or there are no tokens");
    if (!options->store || !result->is_shareable)
        return QUIRE_OK;
    if (result->store_status != QUIRE_OK && !is_passing(result->store_status))
        return result->store_status;
    return put(session, seq, tokens, n_tokens, options, result);
}

static int32_t step_rows(const prompt *p) {
    return p->options->store ? quire_session_put_rows(p->session) : INT32_MAX;
}

/* ------------------------------------------------------------------ the call */

static void on_step(void *user, int32_t done) {
    const prompt *p = user;
    p->result->n_computed = done;
    quire_session_put(p->session, *p->seq, p->tokens, p->result->n_reused + done, p->options,
                      p->result); /* a failure is in the result; the prompt goes on */
    if (p->options->on_progress)
        p->options->on_progress(p->options->user, done, p->n_tokens - p->result->n_reused);
}

static quire_status check(const prompt *p) {
    const quire_prompt_options *o = p->options;
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID, "options were not set by quire_prompt_options_default");
#if !QUIRE_STORE
    if (o->store)
        return quire__fail(QUIRE_E_UNSUPPORTED, "the engine was built without the store");
#endif
    QUIRE_TRY(quire__session_check_idle(p->session));
    QUIRE_TRY(quire__session_check_tokens(p->session, p->tokens, p->n_tokens));
    if (p->n_tokens > quire_session_context(p->session))
        return quire__fail(QUIRE_E_TOO_BIG,
                           "a prompt of %d tokens does not fit into a context of %d",
                           (int)p->n_tokens, (int)quire_session_context(p->session));
    if (*p->seq && (o->n_held != quire_seq_length(*p->seq) || (o->n_held > 0 && !o->held)))
        return quire__fail(QUIRE_E_INVALID, "held has %d tokens and the sequence %d",
                           o->held ? (int)o->n_held : 0, (int)quire_seq_length(*p->seq));
    return QUIRE_OK;
}

/* What the store has in place of the live sequence, if that is more: it may have less than it said.
 * So the live one goes when the other is there, or if there is no room for both. */
static quire_status map_longer(const prompt *p) {
    const int32_t n_live = p->result->n_reused;
    quire_seq *live = *p->seq;
    *p->seq = NULL;
    quire_status status = map_stored(p);
    if (status == QUIRE_E_NO_SLOT || status == QUIRE_E_NO_PAGES) {
        quire_seq_free(live);
        live = NULL;
        status = map_stored(p);
    }
    if (live && (status != QUIRE_OK || p->result->n_from_store <= n_live)) {
        quire_seq_free(*p->seq);
        *p->seq = live;
        p->result->n_reused = n_live;
        p->result->n_from_store = 0;
        return QUIRE_OK;
    }
    quire_seq_free(live);
    p->result->is_shareable = true;
    return status;
}

/* The live sequence saves more if it is at least as long as what the store has. */
static quire_status map_prefix(const prompt *p) {
    map_live(p, *p->seq ? common_tokens(p) : 0);
    p->result->is_shareable = !*p->seq;
    if (*p->seq)
        return p->options->store && stored_tokens(p) > p->result->n_reused ? map_longer(p)
                                                                           : QUIRE_OK;
    return p->options->store ? map_stored(p)
                             : quire_seq_create(quire_session_pool(p->session), p->seq);
}

quire_status quire_session_reuse(quire_session *session, quire_seq **seq, const int32_t *tokens,
                                 int32_t n_tokens, const quire_prompt_options *options,
                                 quire_prompt_result *result) {
    if (!session || !seq || !tokens || n_tokens < 1 || !options || !result)
        return quire__fail(QUIRE_E_INVALID, "an argument is NULL or the prompt is empty");
    *result = (quire_prompt_result){0};
    const prompt p = {.session = session,
                      .seq = seq,
                      .tokens = tokens,
                      .n_tokens = n_tokens,
                      .options = options,
                      .result = result};
    QUIRE_TRY(check(&p));
    return map_prefix(&p);
}

quire_status quire_session_prompt(quire_session *session, quire_seq **seq, const int32_t *tokens,
                                  int32_t n_tokens, const quire_prompt_options *options,
                                  quire_prompt_result *result) {
    QUIRE_TRY(quire_session_reuse(session, seq, tokens, n_tokens, options, result));
    prompt p = {.session = session,
                .seq = seq,
                .tokens = tokens,
                .n_tokens = n_tokens,
                .options = options,
                .result = result};
    const double start = quire__seconds();
    const quire_status status =
        quire__session_prefill(session, *seq, tokens + result->n_reused,
                               n_tokens - result->n_reused, step_rows(&p), on_step, &p);
    result->seconds = quire__seconds() - start;
    return status;
}

int32_t quire_session_put_rows(const quire_session *session) {
    int32_t rows = INT32_MAX;
    const quire_layer *layers = quire_session_layers(session);
    for (int32_t i = 0; i < quire_session_model(session)->n_layers; i++)
        if (layers[i].window > 0)
            rows = smaller(rows, layers[i].window);
    return rows < PAGE ? PAGE : rows / PAGE * PAGE;
}

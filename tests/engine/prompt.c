/* prompt.c: quire_session_prompt. A prompt gives the same logits and the same bytes of cache
 * whether it is computed, found in a store or continued from a live sequence; a store that fails
 * costs its pages alone; what is refused changes nothing. usage: prompt MODEL KV FOLDER */
#include "quire_engine.h"
#if QUIRE_STORE
#include "quire_store.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROMPT = 400,
    COMMON = 200,
    STEP = 256,
    CONTEXT = 512,
    PATH_MAX_BYTES = 1024,
    PAGE = QUIRE_PAGE_TOKENS
};

typedef struct world {
    quire_model *model;
    quire_model_info info;
    quire_policy policy;
    quire_type raw;
    quire_calibration *calibration; /* NULL: the policy needs none */
    const char *folder;
    int32_t tokens[PROMPT], branch[PROMPT]; /* the same for COMMON tokens */
    int32_t steps_left;                     /* until the session is told to stop; -1: never */
} world;

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "prompt: %s (%s)\n", what, quire_last_error());
    exit(1);
}

static bool stop(void *user) { return ((world *)user)->steps_left == 0; }

static quire_session *open_session_for(world *w, int32_t max_seqs) {
    quire_session_options o;
    quire_session_options_default(&o);
    o.policy = w->policy;
    o.raw = w->raw;
    o.calibration = w->calibration;
    o.context = CONTEXT;
    o.max_seqs = max_seqs;
    o.max_rows = STEP; /* much longer than the window of the models with one */
    o.exact_trim =
        false; /* else raw rows of the page sealed last are saved, which a store has not */
    o.stop = stop;
    o.stop_user = w;
    quire_session *session;
    require(quire_session_create(&session, w->model, &o) == QUIRE_OK, "no session");
    return session;
}

static quire_session *open_session(world *w) { return open_session_for(w, 1); }

/* ------------------------------------------------------------------ what a prompt gives */

typedef struct outcome {
    float *logits;
    char *bytes; /* of the saved cache */
    size_t n_bytes;
} outcome;

static outcome outcome_of(const world *w, const quire_session *session, const quire_seq *seq,
                          const int32_t *tokens) {
    const size_t n = (size_t)w->info.n_vocab * sizeof(float);
    outcome o = {.logits = malloc(n)};
    require(quire_seq_length(seq) == PROMPT, "the sequence does not hold the prompt");
    require(quire_session_logits(session, 0) != NULL, "no logits");
    memcpy(o.logits, quire_session_logits(session, 0), n);
    char path[PATH_MAX_BYTES];
    snprintf(path, sizeof path, "%s/saved", w->folder);
    require(quire_session_save(session, seq, path, tokens, PROMPT) == QUIRE_OK, "cannot save");
    FILE *file = fopen(path, "rb");
    require(file != NULL && fseek(file, 0, SEEK_END) == 0, "cannot read what was saved");
    o.n_bytes = (size_t)ftell(file);
    o.bytes = malloc(o.n_bytes);
    rewind(file);
    require(fread(o.bytes, 1, o.n_bytes, file) == o.n_bytes, "cannot read what was saved");
    fclose(file);
    return o;
}

static void require_same(const world *w, const outcome *expected, const quire_session *session,
                         const quire_seq *seq, const int32_t *tokens, const char *what) {
    outcome found = outcome_of(w, session, seq, tokens);
    require(memcmp(found.logits, expected->logits, (size_t)w->info.n_vocab * sizeof(float)) == 0,
            what);
    require(found.n_bytes == expected->n_bytes &&
                memcmp(found.bytes, expected->bytes, found.n_bytes) == 0,
            what);
    free(found.logits);
    free(found.bytes);
}

static outcome cold_outcome(world *w, const int32_t *tokens) {
    quire_session *session = open_session(w);
    quire_seq *seq;
    require(quire_seq_create(quire_session_pool(session), &seq) == QUIRE_OK, "no sequence");
    require(quire_session_prefill(session, seq, tokens, PROMPT, NULL, NULL) == QUIRE_OK, "prefill");
    const outcome o = outcome_of(w, session, seq, tokens);
    quire_session_free(session);
    return o;
}

/* ------------------------------------------------------------------ live sequences */

static void count_step(void *user, int32_t done, int32_t total) {
    (void)done, (void)total;
    world *w = user;
    w->steps_left -= w->steps_left > 0;
}

static void live(world *w, const outcome *whole, const outcome *branch) {
    quire_session *session = open_session(w);
    quire_prompt_options o;
    quire_prompt_options_default(&o);
    o.exact = true;
    o.on_progress = count_step;
    o.user = w;
    quire_prompt_result r;
    quire_seq *seq = NULL;
    w->steps_left = 1; /* stopped after the first step: what was computed stays */
    require(quire_session_prompt(session, &seq, w->tokens, PROMPT, &o, &r) == QUIRE_E_ABORTED,
            "not stopped");
    require(seq && quire_seq_length(seq) == STEP && r.n_computed == STEP, "the first step is lost");
    w->steps_left = -1;
    o.held = w->tokens;
    o.n_held = quire_seq_length(seq);
    require(quire_session_prompt(session, &seq, w->tokens, PROMPT, &o, &r) == QUIRE_OK, "again");
    require(r.n_reused == STEP && r.n_computed == PROMPT - STEP && !r.is_shareable,
            "the first step is computed again");
    require_same(w, whole, session, seq, w->tokens, "continued, the prompt is another");

    o.n_held = PROMPT - 1; /* refused: nothing changes */
    require(quire_session_prompt(session, &seq, w->branch, PROMPT, &o, &r) == QUIRE_E_INVALID,
            "held is not checked");
    int32_t bad[2] = {w->tokens[0], w->info.n_vocab};
    o.n_held = PROMPT;
    require(quire_session_prompt(session, &seq, bad, 2, &o, &r) == QUIRE_E_INVALID,
            "tokens are not checked");
    const quire_step_item item = {.seq = seq, .tokens = w->tokens, .n_tokens = 1};
    require(quire_session_eval(session, &item, 1, true) == QUIRE_OK, "step");
    require(quire_session_prompt(session, &seq, w->branch, PROMPT, &o, &r) == QUIRE_E_STATE,
            "an open step is not seen");
    quire_session_abort(session);
    require(quire_seq_length(seq) == PROMPT, "a refused prompt cut the sequence");

    require(quire_session_prompt(session, &seq, w->branch, PROMPT, &o, &r) == QUIRE_OK, "branch");
    bool windowed = false;
    for (int32_t i = 0; i < w->info.n_layers; i++)
        windowed = windowed || w->info.layers[i].window > 0;
    /* A window that has moved on leaves nothing of use. */
    require(r.n_reused == (windowed ? 0 : COMMON - COMMON % PAGE), "not the common pages");
    require_same(w, branch, session, seq, w->branch, "after a common prefix, another prompt");
    o.held = w->branch; /* the same prompt again: one token is left to compute */
    require(quire_session_prompt(session, &seq, w->branch, PROMPT, &o, &r) == QUIRE_OK, "same");
    require(r.n_reused == PROMPT - 1 && r.n_computed == 1, "the same prompt is computed again");
    require_same(w, branch, session, seq, w->branch, "asked again, another prompt");
    quire_session_free(session);
}

/* ------------------------------------------------------------------ stores */

#if QUIRE_STORE

static quire_store *open_store(const world *w, const char *name, bool read_only,
                               uint64_t max_bytes) {
    char path[PATH_MAX_BYTES];
    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    quire_store_options o;
    quire_store_options_default(&o);
    o.read_only = read_only;
    o.max_bytes = max_bytes;
    quire_store *store;
    require(quire_store_open(&store, path, &o) == QUIRE_OK, "no store");
    return store;
}

static void through_store(world *w, quire_store *store, const int32_t *tokens,
                          const outcome *expected, int32_t n_found, int32_t n_added) {
    quire_session *session = open_session(w);
    quire_prompt_options o;
    quire_prompt_options_default(&o);
    o.store = store;
    quire_prompt_result r;
    quire_seq *seq = NULL;
    require(quire_session_prompt(session, &seq, tokens, PROMPT, &o, &r) == QUIRE_OK, "prompt");
    if (r.n_from_store != n_found || r.pages_added != n_added)
        fprintf(stderr, "prompt: found %d, added %d\n", (int)r.n_from_store, (int)r.pages_added);
    require(r.n_from_store == n_found && r.n_reused == n_found &&
                r.n_computed == PROMPT - n_found && r.pages_added == n_added && r.is_shareable,
            "not the pages that should be found and added");
    require_same(w, expected, session, seq, tokens, "through a store, another prompt");
    require(quire_session_put(session, seq, tokens, PROMPT, &o, &r) == QUIRE_OK &&
                r.pages_added == n_added,
            "pages are added twice");
    quire_session_free(session);
}

typedef struct failures {
    int n;
    quire_status status;
    bool again;
} failures;

static void on_store_error(void *user, quire_status status, bool again) {
    failures *f = user;
    *f = (failures){f->n + 1, status, again};
}

/* A store that takes no page, or no more: told once, and the prompt is as good. */
static void failing(world *w, const char *name, bool read_only, uint64_t max_bytes,
                    quire_status status, const outcome *expected) {
    quire_store *store = open_store(w, name, read_only, max_bytes);
    quire_session *session = open_session(w);
    failures f = {0};
    quire_prompt_options o;
    quire_prompt_options_default(&o);
    o.store = store;
    o.on_store_error = on_store_error;
    o.user = &f;
    quire_prompt_result r;
    quire_seq *seq = NULL;
    require(quire_session_prompt(session, &seq, w->tokens, PROMPT, &o, &r) == QUIRE_OK,
            "a failing store ends the prompt");
    require(f.n == 1 && f.status == status && r.store_status == status && !f.again,
            "the failure is not told once");
    require(read_only ? r.pages_added == 0 : r.pages_added > 0 && r.pages_added < PROMPT / PAGE,
            "it does not fail where it should");
    require_same(w, expected, session, seq, w->tokens, "with a failing store, another prompt");
    quire_seq *second = NULL; /* there is room for one: the store cannot give a sequence */
    require(quire_session_prompt(session, &second, w->tokens, PROMPT, &o, &r) == QUIRE_E_NO_SLOT &&
                !second && r.store_status == QUIRE_E_NO_SLOT,
            "a sequence without a slot");
    require(quire_seq_length(seq) == PROMPT, "the first sequence has changed");
    quire_session_free(session);
    quire_store_close(store);
}

/* The prompt, when its first n_live tokens are live and the store may have more of them. */
static quire_prompt_result live_or_stored(world *w, quire_store *store, int32_t max_seqs,
                                          int32_t n_live, const outcome *whole) {
    quire_session *session = open_session_for(w, max_seqs);
    quire_prompt_options o;
    quire_prompt_options_default(&o);
    quire_prompt_result r;
    quire_seq *seq = NULL;
    require(quire_session_prompt(session, &seq, w->tokens, n_live, &o, &r) == QUIRE_OK, "prompt");
    o.store = store;
    o.held = w->tokens;
    o.n_held = n_live;
    require(quire_session_prompt(session, &seq, w->tokens, PROMPT, &o, &r) == QUIRE_OK,
            "a prompt that is live and stored fails");
    require_same(w, whole, session, seq, w->tokens, "live and stored, another prompt");
    quire_session_free(session);
    return r;
}

/* The session has room for one sequence, which is live: it gives way to a longer prefix in the
 * store. */
static void one_slot(world *w, quire_store *store, const outcome *whole, int32_t n_found) {
    const quire_prompt_result r = live_or_stored(w, store, 1, PAGE, whole);
    require(r.n_from_store == n_found && r.n_reused == n_found && r.is_shareable,
            "the store was not used");
}

/* Turns over a byte of the store's file that is also at `bytes`. */
static bool damage(const world *w, const char *name, const char *bytes, size_t n) {
    char path[PATH_MAX_BYTES];
    snprintf(path, sizeof path, "%s/%s/data.mdb", w->folder, name);
    FILE *file = fopen(path, "r+b");
    require(file != NULL && fseek(file, 0, SEEK_END) == 0, "no file of the store");
    const size_t size = (size_t)ftell(file);
    char *all = malloc(size);
    rewind(file);
    require(fread(all, 1, size, file) == size, "cannot read the store");
    const char *at = NULL;
    for (size_t i = 0; i + n <= size && !at; i++)
        if (memcmp(all + i, bytes, n) == 0)
            at = all + i;
    if (at)
        require(fseek(file, at - all, SEEK_SET) == 0 && fputc(*at ^ 1, file) != EOF, "write");
    free(all);
    fclose(file);
    return at != NULL;
}

/* A store that has less than it says, because a page is damaged, does not cost what is live. */
static void less_than_said(world *w, const outcome *whole) {
    enum { LIVE = 300, PIECE = 64, TRIES = 40 };
    int n_kept = 0;
    for (size_t i = 1; i < TRIES && n_kept == 0; i++) {
        const char *piece = whole->bytes + whole->n_bytes / TRIES * i;
        char name[32];
        snprintf(name, sizeof name, "less%d", (int)i);
        quire_store *store = open_store(w, name, false, 0);
        through_store(w, store, w->tokens, whole, 0, PROMPT / PAGE);
        quire_store_close(store);
        if (!damage(w, name, piece, PIECE))
            continue;
        store = open_store(w, name, false, 0);
        const quire_prompt_result r = live_or_stored(w, store, 2, LIVE, whole);
        require(r.n_reused >= LIVE, "what was live is lost");
        n_kept += r.n_reused == LIVE && r.n_from_store == 0;
        quire_store_close(store);
    }
    require(n_kept > 0, "no damaged page lay before the end of what was live");
}

static void stores(world *w, const outcome *whole, const outcome *branch) {
    const int32_t all = (PROMPT - 1) / PAGE * PAGE, common = COMMON / PAGE * PAGE;
    quire_store *store = open_store(w, "pages", false, 0);
    through_store(w, store, w->tokens, whole, 0, PROMPT / PAGE);
    through_store(w, store, w->tokens, whole, all, 0);
    /* Also with windows: their pages were put before they left. */
    through_store(w, store, w->branch, branch, common, (PROMPT - common) / PAGE);
    one_slot(w, store, whole, all);
    quire_store_close(store);
    less_than_said(w, whole);
    quire_store_close(open_store(w, "empty", false, 0));
    failing(w, "empty", true, 0, QUIRE_E_STATE, whole);
    size_t bytes = 0; /* of the prompt on a raw f32 cache */
    for (int32_t i = 0; i < w->info.n_layers; i++) {
        const quire_layer *l = &w->info.layers[i];
        if (l->share == -1)
            bytes += (size_t)(l->n_kv_heads * (l->k_dim + l->v_dim)) * sizeof(float) * PROMPT;
    }
    if (bytes < 1 << 20) /* the models with windows are larger */
        return;
    quire_policy_parse("none", &w->policy);
    w->raw = QUIRE_F32;
    outcome large = cold_outcome(w, w->tokens);
    failing(w, "small", false, 1 << 20, QUIRE_E_TOO_BIG, &large);
    free(large.logits);
    free(large.bytes);
}

#else

static void stores(world *w, const outcome *whole, const outcome *branch) {
    (void)whole, (void)branch;
    quire_session *session = open_session(w);
    quire_prompt_options o;
    quire_prompt_options_default(&o);
    o.store = (struct quire_store *)w; /* not looked at */
    quire_prompt_result r;
    quire_seq *seq = NULL;
    require(quire_session_prompt(session, &seq, w->tokens, PROMPT, &o, &r) == QUIRE_E_UNSUPPORTED &&
                !seq,
            "a store, without the library");
    quire_session_free(session);
}

#endif

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    world w = {.folder = argv[3], .raw = QUIRE_F16, .steps_left = -1};
    require(quire_model_load(&w.model, argv[1], NULL) == QUIRE_OK, "cannot load");
    require(quire_policy_parse(argv[2], &w.policy) == QUIRE_OK, "policy");
    quire_model_get_info(w.model, &w.info);
    quire_calibration_options calibration;
    quire_calibration_options_default(&calibration);
    require(quire_model_calibrate(w.model, &calibration, &w.calibration) == QUIRE_OK,
            "calibration");
    for (int32_t i = 0; i < PROMPT; i++) {
        w.tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)w.info.n_vocab);
        w.branch[i] = (w.tokens[i] + (i >= COMMON)) % w.info.n_vocab;
    }
    outcome whole = cold_outcome(&w, w.tokens), branch = cold_outcome(&w, w.branch);
    require(memcmp(whole.logits, branch.logits, (size_t)w.info.n_vocab * sizeof(float)) != 0,
            "two prompts with the same logits show nothing");
    live(&w, &whole, &branch);
    stores(&w, &whole, &branch);
    free(whole.logits);
    free(whole.bytes);
    free(branch.logits);
    free(branch.bytes);
    quire_calibration_free(w.calibration);
    quire_model_free(w.model);
    return 0;
}

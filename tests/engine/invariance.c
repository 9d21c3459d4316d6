/* invariance.c: the same tokens give the same bits, however they are fed. Compares the logits of
 * the last rows of a text over numbers of threads, ways of cutting it into steps, neighbours in
 * a batch, a fork, a step taken back, and a cache that was saved and restored.
 * usage: invariance MODEL KV TOKENS [THREADS]   on at most THREADS threads, 3 if it is not given */
#include "quire_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAST_ROWS = 6, ROWS_MAX = 128 };

typedef struct world {
    quire_model *model;
    quire_model_info info;
    quire_policy policy;
    quire_calibration *calibration; /* NULL: the policy needs none */
    int32_t *tokens, n_tokens;
    float *first; /* (LAST_ROWS, n_vocab) */
    int32_t most_threads;
    int n_bad;
} world;

static void check(quire_status status, const char *what) {
    if (status == QUIRE_OK)
        return;
    fprintf(stderr, "invariance: %s: %s: %s\n", what, quire_status_name(status),
            quire_last_error());
    exit(1);
}

static quire_session *open_session(const world *w, int32_t n_threads, int32_t max_rows) {
    quire_session_options o;
    quire_session_options_default(&o);
    o.policy = w->policy;
    o.calibration = w->calibration;
    o.context = w->n_tokens + ROWS_MAX;
    o.max_seqs = 4;
    o.max_rows = max_rows;
    o.max_logits = 64;
    o.n_threads = n_threads;
    quire_session *session;
    check(quire_session_create(&session, w->model, &o), "session");
    return session;
}

/* The first session without one is refused, with a sentence that names the call. */
static void calibrate(world *w) {
    quire_session_options o;
    quire_session_options_default(&o);
    o.policy = w->policy;
    if (!quire_session_needs_calibration(w->model, &o))
        return;
    quire_session *session;
    if (quire_session_create(&session, w->model, &o) != QUIRE_E_INVALID ||
        !strstr(quire_last_error(), "quire_model_calibrate")) {
        fprintf(stderr, "invariance: a session without its calibration: %s\n", quire_last_error());
        exit(1);
    }
    quire_calibration_options options;
    quire_calibration_options_default(&options);
    check(quire_model_calibrate(w->model, &options, &w->calibration), "calibration");
}

static quire_seq *new_seq(quire_session *session) {
    quire_seq *seq;
    check(quire_seq_create(quire_session_pool(session), &seq), "sequence");
    return seq;
}

/* All tokens but the last few, in steps of `rows`. */
static void feed(const world *w, quire_session *session, quire_seq *seq, int32_t rows) {
    const int32_t n = w->n_tokens - LAST_ROWS;
    for (int32_t at = quire_seq_length(seq); at < n;) {
        const quire_step_item item = {
            .seq = seq, .tokens = w->tokens + at, .n_tokens = n - at < rows ? n - at : rows};
        check(quire_session_decode(session, &item, 1, true), "decode");
        at += item.n_tokens;
    }
}

/* The first n_rows of the last rows, one exact step each, beside `neighbours` other sequences. */
static void last_rows(const world *w, quire_session *session, quire_seq *seq,
                      quire_seq **neighbours, size_t n_neighbours, int32_t n_rows, float *logits) {
    for (int32_t i = 0; i < n_rows; i++) {
        quire_step_item items[4];
        const int32_t *tokens = w->tokens + w->n_tokens - LAST_ROWS + i;
        for (size_t j = 0; j < n_neighbours; j++)
            items[j] = (quire_step_item){
                .seq = neighbours[j], .tokens = w->tokens + j, .n_tokens = 1, .n_logits = 1};
        items[n_neighbours] =
            (quire_step_item){.seq = seq, .tokens = tokens, .n_tokens = 1, .n_logits = 1};
        check(quire_session_decode(session, items, n_neighbours + 1, true), "decode");
        memcpy(logits + (size_t)i * (size_t)w->info.n_vocab,
               quire_session_logits(session, (int32_t)n_neighbours),
               (size_t)w->info.n_vocab * sizeof *logits);
    }
}

static void compare(world *w, const char *name, int32_t n_rows, const float *logits) {
    const size_t n = (size_t)n_rows * (size_t)w->info.n_vocab;
    size_t n_different = 0;
    for (size_t i = 0; i < n; i++)
        n_different += memcmp(&logits[i], &w->first[i], sizeof *logits) != 0;
    printf("%-28s %s\n", name, n_different ? "DIFFERENT" : "same");
    w->n_bad += n_different > 0;
}

static void plain(world *w, const char *name, int32_t n_threads, int32_t rows, int32_t n_last,
                  float *logits) {
    quire_session *session = open_session(w, n_threads, ROWS_MAX);
    quire_seq *seq = new_seq(session);
    feed(w, session, seq, rows);
    last_rows(w, session, seq, NULL, 0, n_last, logits);
    if (name)
        compare(w, name, n_last, logits);
    quire_session_free(session);
}

static void in_batch(world *w, float *logits) {
    quire_session *session = open_session(w, w->most_threads < 2 ? 1 : 2, ROWS_MAX);
    quire_seq *others[2] = {new_seq(session), new_seq(session)}, *seq = new_seq(session);
    feed(w, session, others[1], 50);
    feed(w, session, seq, ROWS_MAX);
    last_rows(w, session, seq, others, 2, LAST_ROWS, logits);
    compare(w, "beside two others", LAST_ROWS, logits);
    quire_session_free(session);
}

static void forked(world *w, float *logits) {
    quire_session *session = open_session(w, 1, ROWS_MAX);
    quire_seq *seq = new_seq(session), *child;
    feed(w, session, seq, ROWS_MAX);
    check(quire_seq_fork(seq, &child), "fork");
    last_rows(w, session, seq, NULL, 0, LAST_ROWS, logits);
    compare(w, "parent of a fork", LAST_ROWS, logits);
    last_rows(w, session, child, NULL, 0, LAST_ROWS, logits);
    compare(w, "fork", LAST_ROWS, logits);
    quire_session_free(session);
}

/* Wrong guesses are verified and taken back; then all last rows come in one step, as a right
 * guess would. */
static void taken_back(world *w, float *logits) {
    quire_session *session = open_session(w, 1, ROWS_MAX);
    quire_seq *seq = new_seq(session);
    feed(w, session, seq, ROWS_MAX);
    int32_t wrong[32];
    for (int32_t i = 0; i < 32; i++)
        wrong[i] = (int32_t)((uint32_t)i * 7919u % (uint32_t)w->info.n_vocab);
    const int32_t none = 0;
    const quire_step_item guess = {.seq = seq, .tokens = wrong, .n_tokens = 32, .n_logits = 32};
    check(quire_session_eval(session, &guess, 1, true), "eval");
    check(quire_session_commit(session, &none), "commit");
    const quire_step_item all = {.seq = seq,
                                 .tokens = w->tokens + w->n_tokens - LAST_ROWS,
                                 .n_tokens = LAST_ROWS,
                                 .n_logits = LAST_ROWS};
    check(quire_session_decode(session, &all, 1, true), "decode");
    for (int32_t i = 0; i < LAST_ROWS; i++)
        memcpy(logits + (size_t)i * (size_t)w->info.n_vocab, quire_session_logits(session, i),
               (size_t)w->info.n_vocab * sizeof *logits);
    compare(w, "after wrong guesses, at once", LAST_ROWS, logits);
    quire_session_free(session);
}

/* Saved in one session and restored in another, also with some tokens too many, which are
 * trimmed. */
static void restored(world *w, int32_t n_more, const char *name, float *logits) {
    char path[] = "/tmp/quire-invariance-XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0)
        exit(1);
    close(fd);
    quire_session *session = open_session(w, 1, ROWS_MAX);
    quire_seq *seq = new_seq(session);
    const int32_t n = w->n_tokens - LAST_ROWS + n_more;
    for (int32_t at = 0; at < n;) {
        const quire_step_item item = {
            .seq = seq, .tokens = w->tokens + at, .n_tokens = n - at < 64 ? n - at : 64};
        check(quire_session_decode(session, &item, 1, true), "decode");
        at += item.n_tokens;
    }
    check(quire_session_save(session, seq, path, w->tokens, w->n_tokens), "save");
    quire_session_free(session);
    session = open_session(w, 1, ROWS_MAX);
    quire_file *file;
    quire_file_info info;
    check(quire_file_open(&file, path), "open");
    quire_file_get_info(file, &info);
    if (info.length != n || info.n_tokens != w->n_tokens ||
        memcmp(info.tokens, w->tokens, (size_t)w->n_tokens * sizeof *w->tokens) != 0)
        w->n_bad++;
    check(quire_session_load(session, file, false, &seq), "restore");
    quire_file_close(file);
    unlink(path);
    check(quire_seq_trim(seq, n - n_more), "trim");
    last_rows(w, session, seq, NULL, 0, LAST_ROWS, logits);
    compare(w, name, LAST_ROWS, logits);
    quire_session_free(session);
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5)
        return 2;
    world w = {.n_tokens = atoi(argv[3]), .most_threads = argc > 4 ? atoi(argv[4]) : 3};
    check(quire_model_load(&w.model, argv[1], NULL), "load");
    check(quire_policy_parse(argv[2], &w.policy), "policy");
    quire_model_get_info(w.model, &w.info);
    calibrate(&w);
    w.tokens = malloc((size_t)w.n_tokens * sizeof *w.tokens);
    const size_t n_bytes = (size_t)LAST_ROWS * (size_t)w.info.n_vocab * sizeof(float);
    float *logits = malloc(n_bytes);
    w.first = malloc(n_bytes);
    for (int32_t i = 0; i < w.n_tokens; i++)
        w.tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)w.info.n_vocab);
    plain(&w, NULL, 1, ROWS_MAX, LAST_ROWS, w.first);
    if (w.most_threads >= 2)
        plain(&w, "2 threads", 2, ROWS_MAX, LAST_ROWS, logits);
    /* On fewer processors than threads every wait of a step costs a time slice. */
    const char *sweep = getenv("QUIRE_TEST_SWEEP");
    const bool full = sweep && strcmp(sweep, "full") == 0;
    if (w.most_threads >= 3)
        plain(&w, "3 threads", 3, ROWS_MAX, full ? LAST_ROWS : 1, logits);
    plain(&w, "steps of 37", 1, 37, LAST_ROWS, logits);
    plain(&w, "steps of 1", 1, 1, LAST_ROWS, logits);
    in_batch(&w, logits);
    forked(&w, logits);
    taken_back(&w, logits);
    restored(&w, 0, "saved and restored", logits);
    restored(&w, 3, "restored and trimmed", logits);
    free(w.tokens);
    free(w.first);
    free(logits);
    quire_calibration_free(w.calibration);
    quire_model_free(w.model);
    return w.n_bad > 0;
}

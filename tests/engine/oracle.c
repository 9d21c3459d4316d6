/* oracle.c: the same tokens through the engine with a raw f32 cache and through libllama with an
 * f32 cache. Prints, as JSON, how far the logits are apart, for every way of feeding the tokens:
 *   largest, median   relative L2 distance of a row
 *   first             the same for first tokens, which attend to themselves alone: only the
 *                     weights can differ there
 *   other_top         rows whose likeliest token is another one, although libllama's two best
 *                     are not nearly tied
 *   farther           rows that are farther from libllama than libllama with flash attention,
 *                     which rounds q to f16, is from libllama without
 *
 * usage: oracle MODEL TOKENS THREADS WAYS [TEXT]   TOKENS made up, or from the file TEXT
 *        ORACLE_REPACK=1: both with weights rearranged for this processor
 * WAYS is a list such as "prefill,decode"; only what it names is computed:
 *   prefill       steps of 128 rows
 *   odd_chunks    steps of 37 rows
 *   batch         three sequences in one step
 *   decode        steps of one row. ggml multiplies a lone row by another routine, so these are
 *                 compared with a libllama that is fed token by token as well
 *   decode_first  the same with the first of the three sequences only
 *   itself        libllama with flash attention against libllama without; needed for "farther".
 *                 Beside decode it adds "itself_decode"
 *   lone          many sequences of one token each, all in one step ("lone") and one by one
 *                 ("lone_decode"). Nothing but the weights can differ in any of these rows, and
 *                 both engines multiply the same number of rows, so the bits must be the same
 * The median tells a mistake from ggml's table of GELU, which rounds to f16 and so makes a step of
 * a small difference in a few rows. */
#include "quire_engine.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SEQS = 3, N_LONE = 64, MAX_ROWS = 128, PEER_ROWS = 64, MAX_DISTANCES = 16384 };

typedef struct world {
    quire_model *model;
    quire_model_info info;
    struct llama_model *peer;
    int32_t *tokens; /* (N_SEQS, n_tokens) */
    int32_t n_tokens, n_threads;
    float *expected; /* (N_SEQS, n_tokens, n_vocab): what is compared with */
    double *itself;  /* (N_SEQS, n_tokens): distances of libllama with flash attention from libllama
                        without */
} world;

static void check(quire_status status, const char *what) {
    if (status == QUIRE_OK)
        return;
    fprintf(stderr, "oracle: %s: %s: %s\n", what, quire_status_name(status), quire_last_error());
    exit(1);
}

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "oracle: %s\n", what);
    exit(1);
}

/* ------------------------------------------------------------------ tokens */

static void make_tokens(world *w) {
    uint64_t state = 12345;
    for (int32_t i = 0; i < N_SEQS * w->n_tokens; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        w->tokens[i] = (int32_t)((state >> 33) % (uint64_t)w->info.n_vocab);
    }
}

static void read_tokens(world *w, const char *path) {
    FILE *file = fopen(path, "rb");
    require(file != NULL, "cannot open the text");
    size_t wanted = (size_t)w->n_tokens * N_SEQS * 8;
    char *text = malloc(wanted);
    size_t n = fread(text, 1, wanted, file);
    fclose(file);
    int32_t *all = malloc(wanted * sizeof *all), n_all;
    check(
        quire_model_tokenize(w->model, text, n, QUIRE_TOKENIZE_START, all, (int32_t)wanted, &n_all),
        "tokenize");
    require(n_all >= N_SEQS * w->n_tokens, "the text is too short");
    memcpy(w->tokens, all, (size_t)(N_SEQS * w->n_tokens) * sizeof *all);
    free(all);
    free(text);
}

/* ------------------------------------------------------------------ libllama */

typedef struct distance {
    double largest, first, rows[MAX_DISTANCES];
    int32_t n_rows, n_other_top, n_farther;
} distance;

static void compare(const world *w, int32_t seq, int32_t position, const float *logits,
                    distance *d);

/* The first n_seqs sequences in steps of `rows`. d NULL: these logits are the ones to expect. */
static void run_peer(world *w, enum llama_flash_attn_type flash, int32_t n_seqs, int32_t rows,
                     distance *d) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(N_SEQS * (w->n_tokens + 64));
    params.n_batch = params.n_ubatch = PEER_ROWS;
    params.n_seq_max = N_SEQS;
    params.n_threads = params.n_threads_batch = w->n_threads;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = flash;
    params.swa_full = true;
    struct llama_context *ctx = llama_init_from_model(w->peer, params);
    require(ctx != NULL, "no context");
    struct llama_batch batch = llama_batch_init(PEER_ROWS, 0, 1);
    const size_t n_vocab = (size_t)w->info.n_vocab;
    for (int32_t s = 0; s < n_seqs; s++)
        for (int32_t at = 0; at < w->n_tokens; at += batch.n_tokens) {
            batch.n_tokens = w->n_tokens - at < rows ? w->n_tokens - at : rows;
            for (int32_t i = 0; i < batch.n_tokens; i++) {
                batch.token[i] = w->tokens[s * w->n_tokens + at + i];
                batch.pos[i] = at + i;
                batch.n_seq_id[i] = 1;
                batch.seq_id[i][0] = s;
                batch.logits[i] = 1;
            }
            require(llama_decode(ctx, batch) == 0, "llama_decode failed");
            for (int32_t i = 0; i < batch.n_tokens; i++) {
                const float *logits = llama_get_logits_ith(ctx, i);
                if (d) {
                    compare(w, s, at + i, logits, d);
                    w->itself[s * w->n_tokens + at + i] = d->rows[d->n_rows - 1];
                    d->n_farther = 0; /* not from itself */
                } else {
                    memcpy(w->expected + (size_t)(s * w->n_tokens + at + i) * n_vocab, logits,
                           n_vocab * sizeof(float));
                }
            }
        }
    llama_batch_free(batch);
    llama_free(ctx);
}

/* ------------------------------------------------------------------ comparison */

static int32_t top_of(const float *x, int32_t n, float *gap) {
    int32_t best = 0;
    float second = -INFINITY;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) {
            second = x[best];
            best = i;
        } else if (x[i] > second) {
            second = x[i];
        }
    *gap = x[best] - second;
    return best;
}

static void compare(const world *w, int32_t seq, int32_t position, const float *logits,
                    distance *d) {
    require(logits != NULL, "no logits");
    const int32_t n = w->info.n_vocab;
    const size_t row = (size_t)(seq * w->n_tokens + position);
    const float *expected = w->expected + row * (size_t)n;
    double apart = 0, size = 0;
    for (int32_t i = 0; i < n; i++) {
        const double x = (double)logits[i] - (double)expected[i];
        apart += x * x;
        size += (double)expected[i] * (double)expected[i];
    }
    const double relative = sqrt(apart / size);
    require(isfinite(relative),
            "logits that are no numbers"); /* which no comparison below would notice */
    d->largest = relative > d->largest ? relative : d->largest;
    require(d->n_rows < MAX_DISTANCES, "too many tokens");
    d->rows[d->n_rows++] = relative;
    if (position == 0 && relative > d->first)
        d->first = relative;
    d->n_farther += relative > w->itself[row];
    float gap, unused;
    const int32_t theirs = top_of(expected, n, &gap), ours = top_of(logits, n, &unused);
    d->n_other_top += theirs != ours && gap > 4 * relative * sqrt(size / n);
}

static quire_session *open_session(const world *w, int32_t max_seqs) {
    quire_session_options o;
    quire_session_options_default(&o);
    o.raw = QUIRE_F32;
    o.context = w->n_tokens;
    o.max_seqs = max_seqs;
    o.max_rows = o.max_logits = MAX_ROWS;
    o.n_threads = w->n_threads;
    quire_session *session;
    check(quire_session_create(&session, w->model, &o), "session");
    return session;
}

/* The first n_seqs sequences, one after the other, in steps of `rows`; all rows get logits. */
static distance feed(const world *w, int32_t n_seqs, int32_t rows, bool exact) {
    distance d = {0};
    quire_session *session = open_session(w, N_SEQS);
    for (int32_t s = 0; s < n_seqs; s++) {
        quire_seq *seq;
        check(quire_seq_create(quire_session_pool(session), &seq), "sequence");
        for (int32_t at = 0; at < w->n_tokens;) {
            const int32_t n = w->n_tokens - at < rows ? w->n_tokens - at : rows;
            const quire_step_item item = {.seq = seq,
                                          .tokens = w->tokens + s * w->n_tokens + at,
                                          .n_tokens = n,
                                          .n_logits = n};
            check(quire_session_decode(session, &item, 1, exact), "decode");
            for (int32_t i = 0; i < n; i++)
                compare(w, s, at + i, quire_session_logits(session, i), &d);
            at += n;
        }
        check(quire_seq_free(seq), "free");
    }
    quire_session_free(session);
    return d;
}

/* Three sequences of different lengths: prompts by prefill, then steps of one token each. */
static distance feed_batch(const world *w) {
    distance d = {0};
    quire_session *session = open_session(w, N_SEQS);
    quire_seq *seq[N_SEQS];
    int32_t length[N_SEQS];
    for (int32_t s = 0; s < N_SEQS; s++) {
        check(quire_seq_create(quire_session_pool(session), &seq[s]), "sequence");
        length[s] = w->n_tokens / (s + 2);
        check(quire_session_prefill(session, seq[s], w->tokens + s * w->n_tokens, length[s], NULL,
                                    NULL),
              "prefill");
        compare(w, s, length[s] - 1, quire_session_logits(session, 0), &d);
    }
    for (int32_t step = 0; step < 40 && length[0] < w->n_tokens; step++) {
        quire_step_item items[N_SEQS];
        for (int32_t s = 0; s < N_SEQS; s++)
            items[s] = (quire_step_item){.seq = seq[s],
                                         .tokens = w->tokens + s * w->n_tokens + length[s],
                                         .n_tokens = 1,
                                         .n_logits = 1};
        check(quire_session_decode(session, items, N_SEQS, false), "decode");
        for (int32_t s = 0; s < N_SEQS; s++)
            compare(w, s, length[s]++, quire_session_logits(session, s), &d);
    }
    quire_session_free(session);
    return d;
}

/* N_LONE sequences of one token each, in steps of `rows` rows, through libllama. */
static void lone_peer(const world *w, int32_t rows, float *logits) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 64 * N_LONE;
    params.n_batch = params.n_ubatch = params.n_seq_max = N_LONE;
    params.n_threads = params.n_threads_batch = w->n_threads;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(w->peer, params);
    require(ctx != NULL, "no context");
    struct llama_batch batch = llama_batch_init(N_LONE, 0, 1);
    const size_t n_vocab = (size_t)w->info.n_vocab;
    for (int32_t at = 0; at < N_LONE; at += rows) {
        batch.n_tokens = rows;
        for (int32_t i = 0; i < rows; i++) {
            batch.token[i] = w->tokens[(at + i) % (N_SEQS * w->n_tokens)];
            batch.pos[i] = 0;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = at + i;
            batch.logits[i] = 1;
        }
        require(llama_decode(ctx, batch) == 0, "llama_decode failed");
        for (int32_t i = 0; i < rows; i++)
            memcpy(logits + (size_t)(at + i) * n_vocab, llama_get_logits_ith(ctx, i),
                   n_vocab * sizeof(float));
    }
    llama_batch_free(batch);
    llama_free(ctx);
}

/* The same through the engine; counts rows whose bits differ. */
static int32_t lone_rows_apart(const world *w, int32_t rows) {
    const size_t n_vocab = (size_t)w->info.n_vocab;
    float *expected = malloc(N_LONE * n_vocab * sizeof *expected);
    require(expected != NULL, "out of memory");
    lone_peer(w, rows, expected);
    quire_session *session = open_session(w, N_LONE);
    int32_t n_apart = 0;
    for (int32_t at = 0; at < N_LONE; at += rows) {
        quire_step_item items[N_LONE];
        for (int32_t i = 0; i < rows; i++) {
            items[i] = (quire_step_item){.tokens = w->tokens + (at + i) % (N_SEQS * w->n_tokens),
                                         .n_tokens = 1,
                                         .n_logits = 1};
            check(quire_seq_create(quire_session_pool(session), &items[i].seq), "sequence");
        }
        check(quire_session_decode(session, items, (size_t)rows, false), "decode");
        for (int32_t i = 0; i < rows; i++)
            n_apart +=
                memcmp(quire_session_logits(session, i), expected + (size_t)(at + i) * n_vocab,
                       n_vocab * sizeof *expected) != 0;
    }
    quire_session_free(session);
    free(expected);
    return n_apart;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *separator = "{";

/* with_farther: w->itself has what `farther` compares with. */
static void print(const char *name, distance d, bool with_farther) {
    qsort(d.rows, (size_t)d.n_rows, sizeof d.rows[0], by_size);
    printf("%s\n  \"%s\": {\"largest\": %.3g, \"median\": %.3g, \"first\": %.3g, \"rows\": %d, "
           "\"other_top\": %d",
           separator, name, d.largest, d.rows[d.n_rows / 2], d.first, (int)d.n_rows,
           (int)d.n_other_top);
    if (with_farther)
        printf(", \"farther\": %d", (int)d.n_farther);
    printf("}");
    separator = ",";
}

static void print_lone(const char *name, int32_t n_apart) {
    printf("%s\n  \"%s\": {\"rows\": %d, \"apart\": %d}", separator, name, N_LONE, (int)n_apart);
    separator = ",";
}

/* ------------------------------------------------------------------ ways */

enum { PREFILL, ODD_CHUNKS, BATCH, DECODE, DECODE_FIRST, ITSELF, LONE, N_WAYS };
static const char *const WAYS[N_WAYS] = {"prefill",      "odd_chunks", "batch", "decode",
                                         "decode_first", "itself",     "lone"};

static void read_ways(const char *list, bool wanted[N_WAYS]) {
    while (*list) {
        const size_t n = strcspn(list, ",");
        int way = 0;
        while (way < N_WAYS && (strlen(WAYS[way]) != n || memcmp(WAYS[way], list, n) != 0))
            way++;
        require(way < N_WAYS, "unknown way in the list");
        wanted[way] = true;
        list += n + (list[n] == ',');
    }
}

static void prompts(world *w, const bool wanted[N_WAYS]) {
    run_peer(w, LLAMA_FLASH_ATTN_TYPE_DISABLED, N_SEQS, PEER_ROWS, NULL);
    if (wanted[ITSELF]) {
        distance itself = {0};
        run_peer(w, LLAMA_FLASH_ATTN_TYPE_ENABLED, N_SEQS, PEER_ROWS, &itself);
        print("itself", itself, false);
    }
    if (wanted[PREFILL])
        print("prefill", feed(w, N_SEQS, MAX_ROWS, true), wanted[ITSELF]);
    if (wanted[ODD_CHUNKS])
        print("odd_chunks", feed(w, N_SEQS, 37, true), wanted[ITSELF]);
    if (wanted[BATCH])
        print("batch", feed_batch(w), wanted[ITSELF]);
}

static void single_steps(world *w, int32_t n_seqs, bool itself_wanted) {
    run_peer(w, LLAMA_FLASH_ATTN_TYPE_DISABLED, n_seqs, 1, NULL);
    if (itself_wanted) {
        distance itself = {0};
        run_peer(w, LLAMA_FLASH_ATTN_TYPE_ENABLED, n_seqs, 1, &itself);
        print("itself_decode", itself, false);
    }
    print("decode", feed(w, n_seqs, 1, false), itself_wanted);
}

int main(int argc, char **argv) {
    require(argc >= 5, "usage: oracle MODEL TOKENS THREADS WAYS [TEXT]");
    bool wanted[N_WAYS] = {false};
    read_ways(argv[4], wanted);
    world w = {.n_tokens = atoi(argv[2]), .n_threads = atoi(argv[3])};
    quire_model_options options;
    quire_model_options_default(&options);
    options.repack = getenv("ORACLE_REPACK") != NULL;
    check(quire_model_load(&w.model, argv[1], &options), "load");
    quire_model_get_info(w.model, &w.info);
    struct llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = options.repack; /* the same matrix products as the engine's */
    w.peer = llama_model_load_from_file(argv[1], params);
    require(w.peer != NULL, "libllama cannot load the model");
    w.tokens = malloc((size_t)(N_SEQS * w.n_tokens) * sizeof *w.tokens);
    w.expected =
        malloc((size_t)(N_SEQS * w.n_tokens) * (size_t)w.info.n_vocab * sizeof *w.expected);
    w.itself = calloc((size_t)(N_SEQS * w.n_tokens), sizeof *w.itself);
    require(w.tokens && w.expected && w.itself, "out of memory");
    if (argc > 5)
        read_tokens(&w, argv[5]);
    else
        make_tokens(&w);
    prompts(&w, wanted);
    if (wanted[DECODE] || wanted[DECODE_FIRST])
        single_steps(&w, wanted[DECODE] ? N_SEQS : 1, wanted[ITSELF]);
    if (wanted[LONE]) {
        print_lone("lone", lone_rows_apart(&w, N_LONE));
        print_lone("lone_decode", lone_rows_apart(&w, 1));
    }
    printf("\n}\n");
    llama_model_free(w.peer);
    quire_model_free(w.model);
    free(w.tokens);
    free(w.expected);
    free(w.itself);
    return 0;
}

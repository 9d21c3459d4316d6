/* compare.c: the same calls on a context of llama.cpp with the plug-in and on one without; logits
 * are compared.
 * usage: compare MODEL [--bound NMSE] [--threads N] [--seqs N] [--unified] [--no-flash]
 *                [--type f16|q8_0] [--ubatch N] [--splits N] [--swa-full] [--layers N]
 *                [--parts N] SCENARIO...
 * --bound 0 (the default) means the same bits. Prints the error of each scenario.
 * --layers N: as -ngl N; the rest of the layers and their cache are the CPU's.
 * --parts N: both have the plug-in; the first computes N nodes of a graph at a time, as a program
 * does that looks at nodes. */
#include "llama_host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 1024, LOGITS_MAX = 64 };

static struct {
    const char *model;
    double bound;
    int threads, seqs, ubatch, parts, layers;
    bool unified, flash, swa_full;
    enum ggml_type type;
    const char *splits;
} options = {
    .threads = 1, .seqs = 1, .ubatch = 128, .layers = 999, .flash = true, .type = GGML_TYPE_F16};

/* One of the two sides. Logits of every step are kept, in order. */
struct side {
    struct llama_model *model;
    int parts; /* see above; 0: graphs are not divided */
    struct llama_context *context;
    float *logits;
    int n_logits, n_vocab;
};

/* Called twice for a node that ends a part: the second time it has been computed. */
static bool ends_part(struct ggml_tensor *node, bool ask, void *data) {
    static int n_asked;
    (void)node;
    return !ask || ++n_asked % *(int *)data == 0;
}

static struct llama_context *new_context(struct side *s) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(CONTEXT * (options.unified ? 1 : options.seqs));
    params.n_batch = 1024;
    params.n_ubatch = (uint32_t)options.ubatch;
    params.n_seq_max = (uint32_t)options.seqs;
    params.n_threads = params.n_threads_batch = options.threads;
    params.type_k = params.type_v = options.type;
    params.kv_unified = options.unified;
    params.swa_full = options.swa_full; /* llama.cpp's programs have it off */
    params.cb_eval = s->parts ? ends_part : NULL;
    params.cb_eval_user_data = &s->parts;
    params.flash_attn_type =
        options.flash ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *context = llama_init_from_model(s->model, params);
    require(context != NULL, "a context cannot be made");
    return context;
}

static llama_memory_t memory_of(struct side *s) { return llama_get_memory(s->context); }

/* Tokens that depend on their place alone. */
static llama_token token_at(struct side *s, int seq, int position) {
    unsigned hash = 2654435761u * (unsigned)(position + 7919 * seq + 1);
    return (llama_token)(3 + (hash >> 8) % (unsigned)(s->n_vocab - 3));
}

static void keep_logits(struct side *s, int row) {
    require(s->n_logits < LOGITS_MAX, "a scenario has more than %d logits", LOGITS_MAX);
    memcpy(s->logits + (size_t)s->n_logits++ * (size_t)s->n_vocab,
           llama_get_logits_ith(s->context, row), (size_t)s->n_vocab * sizeof(float));
}

/* Tokens [from, to) of each of the sequences [first, first + n), in one batch, interleaved as a
 * server's would be; logits of the last of each. */
static void feed_seqs(struct side *s, int first, int n, int from, int to) {
    struct llama_batch batch = llama_batch_init((to - from) * n, 0, 1);
    for (int position = from; position < to; position++)
        for (int seq = first; seq < first + n; seq++) {
            int i = batch.n_tokens++;
            batch.token[i] = token_at(s, seq, position);
            batch.pos[i] = position;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = seq;
            batch.logits[i] = position == to - 1;
        }
    require(llama_decode(s->context, batch) == 0, "decoding %d tokens failed", batch.n_tokens);
    for (int i = batch.n_tokens - n; i < batch.n_tokens; i++)
        keep_logits(s, i);
    llama_batch_free(batch);
}

static void feed(struct side *s, int seq, int from, int to) { feed_seqs(s, seq, 1, from, to); }

static void decode_steps(struct side *s, int seq, int from, int n) {
    for (int i = 0; i < n; i++)
        feed(s, seq, from + i, from + i + 1);
}

/* ---------------------------------------------------------------- scenarios */

static void prefill(struct side *s) { feed(s, 0, 0, 300); }

static void decode(struct side *s) {
    feed(s, 0, 0, 200);
    decode_steps(s, 0, 200, 10);
}

static void batches(struct side *s) {
    feed_seqs(s, 0, options.seqs, 0, 70);
    for (int seq = options.seqs - 1; seq >= 0; seq--)
        feed(s, seq, 70, 150);
    decode_steps(s, options.seqs - 1, 150, 3);
    feed_seqs(s, 0, options.seqs - 1, 150, 151);
    for (int i = 0; i < 3; i++)
        feed_seqs(s, 0, options.seqs - 1, 151 + i, 152 + i);
}

static void take_back(struct side *s) {
    feed(s, 0, 0, 200);
    require(llama_memory_seq_rm(memory_of(s), 0, 150, -1), "seq_rm failed");
    feed(s, 0, 150, 170);
    decode_steps(s, 0, 170, 3);
}

/* Cells in the middle of the cache become free and are filled with tokens of later positions. */
static void holes(struct side *s) {
    feed(s, 0, 0, 250);
    require(llama_memory_seq_rm(memory_of(s), 0, 40, 90), "seq_rm failed");
    feed(s, 0, 250, 350);
    decode_steps(s, 0, 350, 5);
}

static void shift(struct side *s) {
    feed(s, 0, 0, 250);
    require(llama_memory_can_shift(memory_of(s)), "this cache cannot be shifted");
    require(llama_memory_seq_rm(memory_of(s), 0, 20, 110), "seq_rm failed");
    llama_memory_seq_add(memory_of(s), 0, 110, -1, -90);
    decode_steps(s, 0, 160, 4);
    feed(s, 0, 164, 230);
}

static void copies(struct side *s) {
    feed(s, 0, 0, 150);
    for (int seq = 1; seq < options.seqs; seq++)
        llama_memory_seq_cp(memory_of(s), 0, seq, -1, -1);
    for (int i = 0; i < 4; i++)
        feed_seqs(s, 0, options.seqs, 150 + i, 151 + i);
    llama_memory_seq_keep(memory_of(s), options.seqs - 1);
    decode_steps(s, options.seqs - 1, 154, 3);
}

/* The state of a whole context into a new one; then one sequence's state into another sequence. */
static void states(struct side *s) {
    feed(s, 0, 0, 180);
    size_t size = llama_state_get_size(s->context);
    uint8_t *state = malloc(size);
    require(llama_state_get_data(s->context, state, size) > 0, "the state cannot be read");
    llama_free(s->context);
    s->context = new_context(s);
    require(llama_state_set_data(s->context, state, size) > 0, "the state cannot be set");
    free(state);
    decode_steps(s, 0, 180, 3);
    size = llama_state_seq_get_size(s->context, 0);
    state = malloc(size);
    require(llama_state_seq_get_data(s->context, state, size, 0) > 0, "no state of a sequence");
    llama_memory_clear(memory_of(s), true);
    int seq = options.seqs - 1;
    require(llama_state_seq_set_data(s->context, state, size, seq) > 0, "no state for a sequence");
    free(state);
    decode_steps(s, seq, 183, 3);
}

static void cleared(struct side *s) {
    feed(s, 0, 0, 130);
    llama_memory_clear(memory_of(s), true);
    feed(s, 0, 0, 70);
    llama_memory_clear(memory_of(s), false);
    feed(s, 0, 0, 70);
}

static bool stop(void *data) {
    (void)data;
    return true;
}

/* Computing is stopped by the host's callback; what it left behind is removed, and all goes on. */
static void aborted(struct side *s) {
    feed(s, 0, 0, 100);
    llama_set_abort_callback(s->context, stop, NULL);
    llama_token token = token_at(s, 0, 100);
    require(llama_decode(s->context, llama_batch_get_one(&token, 1)) != 0,
            "the callback did not stop a step");
    llama_set_abort_callback(s->context, NULL, NULL);
    llama_memory_seq_rm(memory_of(s), 0, 100, -1);
    decode_steps(s, 0, 100, 3);
}

static const struct {
    const char *name;
    void (*run)(struct side *);
} scenarios[] = {
    {"prefill", prefill}, {"decode", decode},   {"batches", batches}, {"take_back", take_back},
    {"holes", holes},     {"shift", shift},     {"copies", copies},   {"states", states},
    {"cleared", cleared}, {"aborted", aborted},
};

/* ---------------------------------------------------------------- comparing */

static double nmse(const float *a, const float *b, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return difference / size;
}

static bool compare(const char *name, void (*run)(struct side *), struct side *sides) {
    for (int i = 0; i < 2; i++) {
        sides[i].context = new_context(&sides[i]);
        if (i == 0 && options.splits)
            require(strcmp(host_graph_splits(), options.splits) == 0,
                    "%s: the graph is in %s splits, not %s", name, host_graph_splits(),
                    options.splits);
        sides[i].n_logits = 0;
        run(&sides[i]);
        llama_free(sides[i].context);
    }
    size_t row = (size_t)sides[0].n_vocab, n = (size_t)sides[0].n_logits * row;
    double error = nmse(sides[0].logits, sides[1].logits, n), worst = 0;
    for (size_t i = 0; i < n; i += row) {
        double of_token = nmse(sides[0].logits + i, sides[1].logits + i, row);
        worst = fmax(worst, of_token);
        if (getenv("QUIRE_TEST_VERBOSE"))
            printf("%s %zu: %.3g\n", name, i / row, of_token);
    }
    bool good = options.bound == 0
                    ? memcmp(sides[0].logits, sides[1].logits, n * sizeof(float)) == 0
                    : error <= options.bound;
    printf("%-10s %3d logits, NMSE %.3g, worst of one token %.3g%s\n", name, sides[0].n_logits,
           error, worst, good ? "" : "   too much");
    return good;
}

static int parse(int argc, char **argv) {
    int i = 2;
    require(argc > 1, "usage: compare MODEL [OPTION]... SCENARIO...");
    options.model = argv[1];
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--unified") == 0)
            options.unified = true;
        else if (strcmp(option, "--no-flash") == 0)
            options.flash = false;
        else if (strcmp(option, "--swa-full") == 0)
            options.swa_full = true;
        else {
            require(++i < argc, "%s wants a value", option);
            if (strcmp(option, "--bound") == 0)
                options.bound = atof(argv[i]);
            else if (strcmp(option, "--threads") == 0)
                options.threads = atoi(argv[i]);
            else if (strcmp(option, "--seqs") == 0)
                options.seqs = atoi(argv[i]);
            else if (strcmp(option, "--ubatch") == 0)
                options.ubatch = atoi(argv[i]);
            else if (strcmp(option, "--layers") == 0)
                options.layers = atoi(argv[i]);
            else if (strcmp(option, "--parts") == 0)
                options.parts = atoi(argv[i]);
            else if (strcmp(option, "--splits") == 0)
                options.splits = argv[i];
            else if (strcmp(option, "--type") == 0)
                options.type = strcmp(argv[i], "q8_0") == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
            else
                require(false, "unknown option %s", option);
        }
    }
    return i;
}

int main(int argc, char **argv) {
    int first = parse(argc, argv);
    ggml_backend_dev_t device = host_load();
    struct side sides[2] = {
        {.model = host_model(options.model, device, options.layers), .parts = options.parts},
        {.model = host_model(options.model, options.parts ? device : NULL, options.layers)}};
    for (int i = 0; i < 2; i++) {
        sides[i].n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(sides[i].model));
        sides[i].logits = malloc((size_t)LOGITS_MAX * (size_t)sides[i].n_vocab * sizeof(float));
    }
    bool good = true;
    for (int i = first; i < argc; i++) {
        size_t k = 0;
        while (k < sizeof scenarios / sizeof *scenarios && strcmp(scenarios[k].name, argv[i]) != 0)
            k++;
        require(k < sizeof scenarios / sizeof *scenarios, "there is no scenario %s", argv[i]);
        good &= compare(argv[i], scenarios[k].run, sides);
    }
    for (int i = 0; i < 2; i++) {
        free(sides[i].logits);
        llama_model_free(sides[i].model);
    }
    return good ? 0 : 1;
}

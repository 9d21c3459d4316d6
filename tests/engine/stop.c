/* stop.c: a text that is stopped after any number of tokens, with and without guesses, where pages
 * are sealed and leave a window. A token is told when all before it are in the cache; afterwards
 * the sequence holds all but the last one, and the text goes on as if it had not been stopped.
 * usage: stop MODEL */
#include "quire_engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 116, LENGTH = 24, DRAFT = 8, WINDOW = 72 };

static void require(bool good, const char *what, int32_t n) {
    if (good)
        return;
    fprintf(stderr, "stop: %s, after %d tokens (%s)\n", what, (int)n, quire_last_error());
    exit(1);
}

typedef struct telling {
    quire_seq *seq;
    int32_t *text, n_text, stop_at;
} telling;

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    (void)bytes, (void)n_bytes;
    telling *t = user;
    require(quire_seq_length(t->seq) >= t->n_text,
            "told before the tokens before it were committed", t->n_text - PROMPT);
    t->text[t->n_text++] = token;
    return t->n_text < t->stop_at;
}

/* Appends to t->text, whose first n_cached tokens are in the sequence, until it has stop_at
 * tokens. */
static quire_generate_result go_on(quire_session *session, const quire_model *model, telling *t,
                                   int32_t n_cached, int32_t draft) {
    quire_sampler_options sampling;
    quire_sampler_options_default(&sampling);
    sampling.temp = 0;
    quire_sampler *sampler;
    require(quire_sampler_create(&sampler, model, &sampling) == QUIRE_OK, "no sampler", 0);
    quire_generate_options options;
    quire_generate_options_default(&options);
    options.exact = true;
    options.ignore_end = true;
    options.max_tokens = 2 * LENGTH; /* the callback stops */
    options.draft = draft;
    options.n_cached = n_cached;
    options.resume = n_cached > 0;
    options.on_token = on_token;
    options.user = t;
    quire_generate_result result;
    require(quire_generate(session, t->seq, sampler, t->text, t->n_text, &options, &result) ==
                QUIRE_OK,
            "failed", t->stop_at - PROMPT);
    quire_sampler_free(sampler);
    return result;
}

/* Returns how many guesses were right. */
static int32_t stop_everywhere(const quire_model *model, const quire_session_options *options) {
    quire_session *session;
    require(quire_session_create(&session, model, options) == QUIRE_OK, "no session", 0);
    int32_t expected[PROMPT + LENGTH], text[PROMPT + LENGTH], n_right = 0;
    for (int i = 0; i < PROMPT; i++)
        expected[i] = text[i] = 3 + i % 3;
    for (int32_t draft = 0; draft <= DRAFT; draft += DRAFT) {
        for (int32_t n = LENGTH; n > 0; n--) {
            telling t = {.text = draft == 0 && n == LENGTH ? expected : text,
                         .n_text = PROMPT,
                         .stop_at = PROMPT + n};
            require(quire_seq_create(quire_session_pool(session), &t.seq) == QUIRE_OK,
                    "no sequence", n);
            const quire_generate_result result = go_on(session, model, &t, 0, draft);
            require(t.n_text == t.stop_at && result.n_generated == n,
                    "not stopped where it should be", n);
            require(quire_seq_length(t.seq) == PROMPT + n - 1,
                    "the sequence does not hold what was told", n);
            n_right += result.n_accepted;
            if (n < LENGTH) {
                t.stop_at = PROMPT + LENGTH;
                go_on(session, model, &t, t.n_text - 1, draft);
            }
            for (int32_t i = 0; i < PROMPT + LENGTH; i++)
                require(t.text[i] == expected[i], "another text", n);
            quire_seq_free(t.seq);
        }
    }
    quire_pool_stats stats;
    quire_pool_get_stats(quire_session_pool(session), &stats);
    require(stats.reopened_pages == 0, "a packed page was opened again", 0);
    quire_session_free(session);
    return n_right;
}

int main(int argc, char **argv) {
    quire_model *model;
    int32_t n_right = 0;
    if (argc != 2)
        return 2;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "cannot load", 0);
    for (int variant = 0; variant < 3; variant++) {
        quire_session_options options;
        quire_session_options_default(&options);
        options.context = 256;
        options.max_rows = 64;
        options.exact_trim = variant != 1;
        require(quire_policy_parse("k8v4", &options.policy) == QUIRE_OK, "no such policy", 0);
        options.max_kv = variant == 2 ? WINDOW : 0;
        n_right += stop_everywhere(model, &options);
    }
    require(n_right > DRAFT, "hardly anything was guessed right", n_right);
    printf("%d guesses were right\n", (int)n_right);
    quire_model_free(model);
    return 0;
}

/* shift.c: a text with a part dropped from its cache, against the text that never had that part.
 * In a model of one layer K and V of a token depend on nothing but the token and its position,
 * so the two must agree. usage: shift MODEL TOKENS FROM TO; prints the largest difference of
 * logits, as a part of the largest logit */
#include "quire_engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(quire_status status, const char *what) {
    if (status == QUIRE_OK)
        return;
    fprintf(stderr, "shift: %s: %s: %s\n", what, quire_status_name(status), quire_last_error());
    exit(1);
}

/* Logits of one more token after the text; `from` == `to`: nothing is dropped. */
static void next_logits(const quire_model *model, const int32_t *tokens, int32_t n, int32_t from,
                        int32_t to, float *logits) {
    quire_session_options o;
    quire_session_options_default(&o);
    o.raw = QUIRE_F32;
    o.context = n + 1;
    quire_session *session;
    quire_seq *seq;
    quire_model_info info;
    quire_model_get_info(model, &info);
    check(quire_session_create(&session, model, &o), "session");
    check(quire_seq_create(quire_session_pool(session), &seq), "sequence");
    check(quire_session_prefill(session, seq, tokens, n, NULL, NULL), "prefill");
    check(quire_session_shift(session, seq, from, to), "shift");
    const int32_t next = 77;
    const quire_step_item item = {.seq = seq, .tokens = &next, .n_tokens = 1, .n_logits = 1};
    check(quire_session_decode(session, &item, 1, true), "decode");
    memcpy(logits, quire_session_logits(session, 0), (size_t)info.n_vocab * sizeof *logits);
    quire_session_free(session);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    quire_model *model;
    quire_model_options options;
    quire_model_options_default(&options);
    check(quire_model_load(&model, argv[1], &options), "model");
    quire_model_info info;
    quire_model_get_info(model, &info);
    const int32_t n = atoi(argv[2]), from = atoi(argv[3]), to = atoi(argv[4]);
    int32_t *all = malloc((size_t)n * sizeof *all), *left = malloc((size_t)n * sizeof *left),
            n_left = 0;
    for (int32_t i = 0; i < n; i++) {
        all[i] = 3 + i * 7919 % (info.n_vocab - 3);
        if (i < from || i >= to)
            left[n_left++] = all[i];
    }
    float *shifted = malloc((size_t)info.n_vocab * sizeof *shifted),
          *wanted = malloc((size_t)info.n_vocab * sizeof *wanted);
    next_logits(model, all, n, from, to, shifted);
    next_logits(model, left, n_left, 0, 0, wanted);
    double largest = 0, difference = 0;
    for (int32_t i = 0; i < info.n_vocab; i++) {
        const double size = fabs((double)wanted[i]),
                     apart = fabs((double)shifted[i] - (double)wanted[i]);
        if (!isfinite(apart)) {
            fprintf(stderr, "shift: logits that are no numbers\n");
            return 1;
        }
        largest = size > largest ? size : largest;
        difference = apart > difference ? apart : difference;
    }
    printf("%g\n", difference / largest);
    free(all), free(left), free(shifted), free(wanted);
    quire_model_free(model);
    return 0;
}

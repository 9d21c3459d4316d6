/* load.c: loads every file named, and where that works generates a little. Prints the status and
 * the reason of each. usage: load FILE... */
#include "quire_engine.h"

#include <stdio.h>

static quire_status try_one(quire_session *session) {
    const int32_t tokens[] = {1, 3, 5, 7, 9};
    quire_seq *seq;
    const quire_status status = quire_seq_create(quire_session_pool(session), &seq);
    return status == QUIRE_OK ? quire_session_prefill(session, seq, tokens, 5, NULL, NULL) : status;
}

static quire_status try_file(const char *path) {
    quire_model *model;
    quire_status status = quire_model_load(&model, path, NULL);
    if (status != QUIRE_OK)
        return status;
    quire_session_options options;
    quire_session_options_default(&options);
    options.context = 128;
    options.max_rows = 64;
    options.max_logits = 2;
    quire_session *session;
    status = quire_session_create(&session, model, &options);
    if (status == QUIRE_OK) {
        status = try_one(session);
        quire_session_free(session);
    }
    quire_model_free(model);
    return status;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const quire_status status = try_file(argv[i]);
        printf("%s %s\n", quire_status_name(status), status == QUIRE_OK ? "" : quire_last_error());
        fflush(stdout);
    }
    return 0;
}

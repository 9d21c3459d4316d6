/* text_store.c: finds prefixes of prompts in a store, and puts new pages into it. */
#include "text/text_store.h"

#include "command.h"
#include "output/report.h"

#include <string.h>

void cli_text_store_options(cli_text_store *ts, cli_option *options) {
    const cli_option all[CLI_STORE_OPTIONS] = {
        cli_string("store", &ts->directory, "DIR",
                   "directory of a store: the prefix of the prompt that it has is not computed "
                   "again, and new pages are added to it"),
        cli_size("store-size", &ts->max_bytes, 0x1p20, 0x1p50,
                 "set the limit of the store (default: keep the current one; 8G when created)"),
    };
    memcpy(options, all, sizeof all);
    options[0].heading = "store options";
}

static int create_empty(quire_session *session, quire_seq **seq) {
    quire_status made = quire_seq_create(quire_session_pool(session), seq);
    return made == QUIRE_OK ? CLI_OK : cli_quire_error("cannot make a sequence", made, NULL);
}

int32_t cli_text_store_rows(const cli_text_store *ts, const quire_model *model,
                            const cli_model_args *args) {
    if (!ts->directory)
        return 0;
    quire_session_options usual;
    quire_session_options_default(&usual);
    quire_model_info info;
    quire_model_get_info(model, &info);
    int32_t rows = usual.max_rows;
    for (int32_t i = 0; i < info.n_layers; i++) {
        const int32_t own = info.layers[i].window,
                      window = own == 0 && args->max_kv ? args->max_kv - args->keep : own;
        if (window > 0 && window < rows)
            rows = window;
    }
    return rows < QUIRE_PAGE_TOKENS ? QUIRE_PAGE_TOKENS
                                    : rows / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
}

static int without_store(const cli_text_store *ts) {
    if (!ts->max_bytes)
        return CLI_OK;
    cli_error("--store-size needs --store DIR");
    return CLI_USAGE;
}

#if QUIRE_STORE

#include "quire_store.h"

int cli_text_store_open(cli_text_store *ts) {
    if (!ts->directory)
        return without_store(ts);
    quire_store_options options;
    quire_store_options_default(&options);
    options.max_bytes = ts->max_bytes;
    quire_status status = quire_store_open(&ts->store, ts->directory, &options);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot open the store", status, NULL);
}

static quire_status text_of(quire_session *session, const int32_t *tokens, int32_t n_tokens,
                            quire_store_text *text) {
    const char *identity = NULL;
    quire_status status = quire_session_identity(session, &identity);
    *text = (quire_store_text){.identity = identity,
                               .identity_bytes = identity ? strlen(identity) : 0,
                               .tokens = tokens,
                               .n_tokens = n_tokens};
    return status;
}

int cli_text_store_get(cli_text_store *ts, quire_session *session, const int32_t *tokens,
                       int32_t n_tokens, quire_seq **seq) {
    quire_store_text text;
    if (!ts->store)
        return create_empty(session, seq);
    if (ts->failed == QUIRE_E_TOO_BIG) /* this is another text, which may fit */
        ts->failed = QUIRE_OK;
    quire_status status = text_of(session, tokens, n_tokens, &text);
    if (status == QUIRE_OK)
        status = quire_store_get(ts->store, quire_session_pool(session), &text, 1, seq);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot look into the store", status, NULL);
    ts->n_found += quire_seq_length(*seq);
    return CLI_OK;
}

static bool passes(quire_status status) {
    return status == QUIRE_E_BUSY || status == QUIRE_E_IO || status == QUIRE_E_NOMEM;
}

void cli_text_store_put(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                        const int32_t *tokens, int32_t n_tokens) {
    quire_store_text text;
    quire_store_added added = {0};
    if (!ts->store || (ts->failed != QUIRE_OK && !passes(ts->failed)))
        return;
    quire_status status = text_of(session, tokens, n_tokens, &text);
    if (status == QUIRE_OK)
        status = quire_store_put(ts->store, seq, &text, &added);
    ts->n_pages += added.pages;
    ts->n_bytes += added.bytes;
    if (status != QUIRE_OK &&
        status != ts->failed) /* the text is worth more than its pages: it goes on */
        cli_quire_error(passes(status) ? "these pages do not go into the store now"
                                       : "no more pages go into the store",
                        status, NULL);
    ts->failed = status;
}

void cli_text_store_put_again(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                              const int32_t *tokens, int32_t n_tokens) {
    if (ts->failed != QUIRE_OK)
        cli_text_store_put(ts, session, seq, tokens, n_tokens);
}

void cli_text_store_close(cli_text_store *ts) {
    quire_store_close(ts->store);
    ts->store = NULL;
}

#else

int cli_text_store_open(cli_text_store *ts) {
    if (!ts->directory)
        return without_store(ts);
    cli_error("--store is not available: this program was built without QUIRE_STORE");
    return CLI_USAGE;
}

int cli_text_store_get(cli_text_store *ts, quire_session *session, const int32_t *tokens,
                       int32_t n_tokens, quire_seq **seq) {
    (void)ts, (void)tokens, (void)n_tokens;
    return create_empty(session, seq);
}

void cli_text_store_put(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                        const int32_t *tokens, int32_t n_tokens) {
    (void)ts, (void)session, (void)seq, (void)tokens, (void)n_tokens;
}

void cli_text_store_put_again(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                              const int32_t *tokens, int32_t n_tokens) {
    (void)ts, (void)session, (void)seq, (void)tokens, (void)n_tokens;
}

void cli_text_store_close(cli_text_store *ts) { (void)ts; }

#endif

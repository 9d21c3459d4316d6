/* text_store.c: options of a store, and prompts through it. */
#include "text/text_store.h"

#include "command.h"
#include "output/report.h"

#include <string.h>

void cli_text_store_options(cli_text_store *ts, cli_option *options) {
    const cli_option all[CLI_STORE_OPTIONS] = {
        cli_string("store", &ts->directory, "PLACES",
                   "a store: the prefix of the prompt that it has is not computed again, and new "
                   "pages are added to it. A directory, redis://HOST, or mem:SIZE; or several of "
                   "them, separated by commas, the fastest first: mem:256M,pages,redis://HOST"),
        cli_size("store-size", &ts->max_bytes, 0x1p20, 0x1p50,
                 "set the limit of the store's directory (default: keep the current one; 8G when "
                 "created)"),
    };
    memcpy(options, all, sizeof all);
    options[0].heading = "store options";
}

/* ------------------------------------------------------------------ prompts */

static void on_progress(void *user, int32_t done, int32_t total) {
    cli_text_store *ts = user;
    ts->failed = ts->result.store_status;
    cli_progress_update(&ts->progress, done, total);
    if (done == total)
        cli_progress_end(&ts->progress);
}

static void on_store_error(void *user, quire_status status, bool again) {
    cli_text_store *ts = user;
    if (status != ts->failed) /* the text is worth more than its pages: it goes on */
        cli_quire_error(again ? "cannot add pages to the store; will try again later"
                              : "cannot add pages to the store; the rest of this text is not added",
                        status, NULL);
    ts->failed = status;
}

static quire_prompt_options prompt_options(cli_text_store *ts) {
    quire_prompt_options options;
    quire_prompt_options_default(&options);
    options.store = ts->store;
    options.on_progress = on_progress;
    options.on_store_error = on_store_error;
    options.user = ts;
    return options;
}

quire_status cli_text_store_prompt(cli_text_store *ts, quire_session *session, const int32_t *held,
                                   int32_t n_held, bool exact, const int32_t *tokens,
                                   int32_t n_tokens, quire_seq **seq) {
    quire_prompt_options options = prompt_options(ts);
    options.held = held;
    options.n_held = n_held;
    options.exact = exact;
    if (ts->failed == QUIRE_E_TOO_BIG) /* this is another text, which may fit */
        ts->failed = QUIRE_OK;
    cli_progress_start(&ts->progress, "prefill");
    const quire_status status =
        quire_session_prompt(session, seq, tokens, n_tokens, &options, &ts->result);
    cli_progress_end(&ts->progress);
    ts->n_found += ts->result.n_from_store;
    ts->n_pages += ts->result.pages_added;
    ts->n_bytes += ts->result.bytes_added;
    return status;
}

void cli_text_store_put(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                        const int32_t *tokens, int32_t n_tokens) {
    const quire_prompt_options options = prompt_options(ts);
    const quire_prompt_result before = ts->result;
    if (!seq)
        return;
    quire_session_put(session, seq, tokens, n_tokens, &options, &ts->result);
    ts->n_pages += ts->result.pages_added - before.pages_added;
    ts->n_bytes += ts->result.bytes_added - before.bytes_added;
}

void cli_text_store_put_again(cli_text_store *ts, quire_session *session, const quire_seq *seq,
                              const int32_t *tokens, int32_t n_tokens) {
    if (ts->result.store_status != QUIRE_OK)
        cli_text_store_put(ts, session, seq, tokens, n_tokens);
}

/* ------------------------------------------------------------------ the places */

static int without_store(const cli_text_store *ts) {
    if (!ts->max_bytes)
        return CLI_OK;
    cli_error("--store-size needs --store");
    return CLI_USAGE;
}

#if QUIRE_STORE

#include "options/comma_list.h"
#include "quire_store.h"

#include <stdio.h>
#include <stdlib.h>

/* One line when a place begins to fail, and one when it works again. */
static void on_tier(void *user, const quire_store_tier *tier) {
    const cli_text_store *ts = user;
    char line[QUIRE_STORE_PLACE_TEXT + sizeof tier->error + 64];
    if (tier->is_failing)
        snprintf(line, sizeof line, "the store goes on without %s: %s", tier->place, tier->error);
    else
        snprintf(line, sizeof line, "the store uses %s again", tier->place);
    if (!ts->take_line || !ts->take_line(line))
        cli_error("%s", line);
}

static bool is_url(const char *place) { return strstr(place, "://") != NULL; }

/* Only a single directory has no tiers. */
static bool has_tiers(const char *const *places, size_t n) {
    return n > 1 || is_url(places[0]) || strncmp(places[0], "mem:", 4) == 0;
}

/* A comma in the password of a Redis URL has split it. Its rest would become a directory, and be
 * shown in messages. */
static bool has_split_url(const char *const *places, size_t n) {
    bool behind_url = false;
    for (size_t i = 0; i < n; i++) {
        if (behind_url && !is_url(places[i]) && strchr(places[i], '@'))
            return true;
        behind_url |= is_url(places[i]);
    }
    return false;
}

static void name_places(cli_text_store *ts, const char *const *places, size_t n) {
    ts->name[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        char text[QUIRE_STORE_PLACE_TEXT];
        const size_t used = strlen(ts->name);
        quire_store_place_text(places[i], text);
        snprintf(ts->name + used, sizeof ts->name - used, "%s%s", i ? "," : "", text);
    }
}

int cli_text_store_open(cli_text_store *ts) {
    if (!ts->directory)
        return without_store(ts);
    quire_store_options options;
    quire_store_options_default(&options);
    options.max_bytes = ts->max_bytes;
    options.on_tier = on_tier;
    options.user = ts;
    size_t n;
    char **places = cli_list_split(ts->directory, &n);
    if (!places)
        return CLI_FAILURE;
    const char *const *list = (const char *const *)places;
    if (has_split_url(list, n)) {
        cli_error("--store: a place behind a Redis URL contains '@'; write ',' in a password as "
                  "%%2C, or give directories first");
        free(places);
        return CLI_USAGE;
    }
    name_places(ts, list, n);
    const quire_status status = has_tiers(list, n)
                                    ? quire_store_open_tiers(&ts->store, list, n, &options)
                                    : quire_store_open(&ts->store, list[0], &options);
    free(places);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot open the store", status, NULL);
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

void cli_text_store_close(cli_text_store *ts) { (void)ts; }

#endif

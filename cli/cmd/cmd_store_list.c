/* cmd_store_list.c: quire store list. Lists the texts of a store by their last pages, most recently
 * used first. */
#include "command.h"
#include "options/args.h"
#include "options/cache_args.h"
#include "options/store_args.h"
#include "output/report.h"
#include "output/text_table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SHOWN_DIGITS = 16, PAIRS_BYTES = 160, MODEL_BYTES = 64 };

typedef struct line {
    quire_store_entry entry; /* its pointers are no longer valid */
    char pairs[PAIRS_BYTES], model[MODEL_BYTES];
    json_t *identity;
} line;

typedef struct listing {
    line *lines;
    size_t n, capacity;
    bool all, failed;
} listing;

/* The codecs of the layers, each pair once: "kc8:vt4 raw:raw". */
static void name_pairs(const quire_store_entry *entry, char *text) {
    text[0] = '\0';
    for (int32_t i = 0; i < entry->n_layers; i++) {
        const quire_layer *l = &entry->layers[i];
        bool before = false;
        for (int32_t j = 0; j < i; j++)
            before = before || (entry->layers[j].k == l->k && entry->layers[j].v == l->v);
        const size_t used = strlen(text);
        if (!before)
            snprintf(text + used, PAIRS_BYTES - used, "%s%s", used ? " " : "",
                     cli_pair_text((quire_pair){l->k, l->v}).text);
    }
}

/* The *n characters after "NAME " on the line of the identity that starts with it; "" if none. */
static const char *identity_line(const quire_store_entry *entry, const char *name, size_t *n) {
    const char *at = entry->identity, *end = at + entry->identity_bytes;
    const size_t n_name = strlen(name);
    while (at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        if ((size_t)(stop - at) > n_name + 1 && memcmp(at, name, n_name) == 0 &&
            at[n_name] == ' ') {
            *n = (size_t)(stop - at) - n_name - 1;
            return at + n_name + 1;
        }
        at = newline ? newline + 1 : NULL;
    }
    *n = 0;
    return "";
}

/* "llama 0123abcd": the architecture, and the first digits of the digest of the weights. */
static void name_model(const quire_store_entry *entry, char *text) {
    size_t n_kind, n_weights;
    const char *kind = identity_line(entry, "architecture", &n_kind);
    const char *weights = identity_line(entry, "weights", &n_weights);
    n_kind = n_kind < 32 ? n_kind : 32;
    n_weights = n_weights < 8 ? n_weights : 8;
    snprintf(text, MODEL_BYTES, "%.*s %.*s", (int)n_kind, kind, (int)n_weights, weights);
    for (char *c = text; *c; c++)
        *c = isprint((unsigned char)*c) ? *c : '?';
}

static bool add(void *user, const quire_store_entry *entry) {
    listing *l = user;
    if (!entry->is_end && !l->all)
        return true;
    if (l->n == l->capacity) {
        const size_t more = l->capacity ? 2 * l->capacity : 64;
        line *larger = realloc(l->lines, more * sizeof *larger);
        l->failed = !larger;
        if (l->failed)
            return false;
        l->lines = larger;
        l->capacity = more;
    }
    line *to = &l->lines[l->n++];
    *to = (line){.entry = *entry};
    name_pairs(entry, to->pairs);
    name_model(entry, to->model);
    to->identity = json_stringn(entry->identity ? entry->identity : "",
                                entry->identity_bytes); /* NULL: not text */
    return true;
}

static int newest_first(const void *a, const void *b) {
    const quire_store_entry *x = &((const line *)a)->entry, *y = &((const line *)b)->entry;
    if (x->used != y->used)
        return x->used < y->used ? 1 : -1;
    return y->n_tokens - x->n_tokens;
}

static int print_table(const listing *l) {
    static const cli_column columns[] = {{"key", false},       {"tokens", true}, {"bytes", true},
                                         {"last used", false}, {"K:V", false},   {"model", false}};
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < l->n; i++) {
        const quire_store_entry *e = &l->lines[i].entry;
        const time_t used = (time_t)e->used;
        struct tm when;
        char moment[32] = "";
        if (localtime_r(&used, &when))
            strftime(moment, sizeof moment, "%Y-%m-%d %H:%M", &when);
        cli_table_cell(&table, "%.*s", SHOWN_DIGITS, cli_key_text(&e->key).text);
        cli_table_cell(&table, "%d", (int)e->n_tokens);
        cli_table_cell(&table, "%s", cli_bytes(e->text_bytes).text);
        cli_table_cell(&table, "%s", moment);
        cli_table_cell(&table, "%s", l->lines[i].pairs);
        cli_table_cell(&table, "%s%s", l->lines[i].model, e->whole ? "" : " (not whole)");
    }
    return cli_table_print(&table, stdout);
}

static int print_json(const listing *l) {
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const quire_store_entry *e = &l->lines[i].entry;
        cli_json_append(&list, json_pack("{s:s, s:i, s:I, s:I, s:I, s:b, s:b, s:s, s:O?}", "key",
                                         cli_key_text(&e->key).text, "n_tokens", (int)e->n_tokens,
                                         "bytes", (json_int_t)e->bytes, "text_bytes",
                                         (json_int_t)e->text_bytes, "used", (json_int_t)e->used,
                                         "end", (int)e->is_end, "whole", (int)e->whole, "kv",
                                         l->lines[i].pairs, "identity", l->lines[i].identity));
    }
    return cli_print_json(list);
}

int cli_store_list_run(int argc, char **argv) {
    const char *directory = NULL;
    bool json = false;
    listing l = {0};
    const cli_argument arguments[] = {{"STORE", &directory, true}};
    const cli_option options[] = {
        cli_flag("all", &l.all, "list every page, not only the last page of each text"),
        cli_flag("json", &json, "print JSON"),
    };
    static const char *const examples[] = {"quire store list pages", NULL};
    const cli_usage usage = {
        .command = "store list",
        .about =
            "Lists the texts in a store: the key of the last page, the tokens and bytes from "
            "the start of the text to that page, the time of the last use, the codecs, and the "
            "model. Pages that several texts share count for each of them." CLI_STORE_PLACE,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .arguments = arguments,
        .n_arguments = 1,
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    quire_store *store;
    status = cli_store_read(directory, &store);
    if (status != CLI_OK)
        return status;
    quire_status walked = quire_store_walk(store, add, &l);
    quire_store_close(store);
    if (walked != QUIRE_OK || l.failed)
        status = cli_quire_error("cannot list the store", l.failed ? QUIRE_E_NOMEM : walked,
                                 l.failed ? "out of memory" : NULL);
    if (l.n > 0)
        qsort(l.lines, l.n, sizeof *l.lines, newest_first);
    if (status == CLI_OK)
        status = json ? print_json(&l) : print_table(&l);
    for (size_t i = 0; i < l.n; i++)
        json_decref(l.lines[i].identity);
    free(l.lines);
    return status;
}

/* inspect_file.c: reports the contents of a saved cache as text and as JSON. */
#include "reports/inspect_file.h"

#include "command.h"
#include "options/cache_args.h"
#include "output/report.h"
#include "output/text_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { DIGEST_BYTES = 16, SHOWN_TOKENS = 8, SHAPE_BYTES = 64 };

typedef struct verdict {
    quire_status status; /* of opening the file and checking every byte */
    char reason[320];
} verdict;

typedef struct hex {
    char text[2 * DIGEST_BYTES + 1];
} hex;

static hex hex_of(const uint8_t *bytes) {
    hex out;
    for (int i = 0; i < DIGEST_BYTES; i++)
        snprintf(out.text + 2 * i, 3, "%02x", bytes[i]);
    return out;
}

/* An identity may be any bytes; the engine writes lines of text. */
static bool is_text(const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isprint((unsigned char)bytes[i]) && bytes[i] != '\n')
            return false;
    return n > 0;
}

static bool same_layer(const quire_layer *a, const quire_layer *b) {
    return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->k_dim == b->k_dim &&
           a->v_dim == b->v_dim && a->window == b->window && a->keep == b->keep && a->k == b->k &&
           a->v == b->v && (a->share < 0) == (b->share < 0);
}

/* ------------------------------------------------------------------ text */

static void print_identity(const quire_file_info *info) {
    const char *text = info->identity;
    size_t left = info->identity_bytes;
    if (!is_text(text, left)) {
        printf("identity  %zu bytes\n", left);
        return;
    }
    for (const char *title = "identity"; left > 0; title = "") {
        const char *end = memchr(text, '\n', left);
        size_t n = end ? (size_t)(end - text) : left;
        printf("%-8s  %.*s\n", title, (int)n, text);
        n += end != NULL;
        text += n;
        left -= n;
    }
}

static void print_tokens(const quire_file_info *info) {
    printf("tokens    %d in the cache (%d full pages, %d tokens in the open one), %d ids",
           (int)info->length, (int)(info->length / QUIRE_PAGE_TOKENS),
           (int)(info->length % QUIRE_PAGE_TOKENS), (int)info->n_tokens);
    for (int32_t i = 0; i < info->n_tokens && i < SHOWN_TOKENS; i++)
        printf("%s%d", i ? " " : ": ", (int)info->tokens[i]);
    puts(info->n_tokens > SHOWN_TOKENS ? " ..." : "");
}

static void print_history(const quire_file_info *info) {
    printf("history   ");
    if (info->history == 0) {
        puts("none: every token is as it was computed");
        return;
    }
    const char *before = "";
    for (uint32_t one = 1; one <= QUIRE_HISTORY_ALL; one <<= 1)
        if (info->history & one) {
            printf("%s%s", before, quire_history_name((quire_history)one));
            before = ", ";
        }
    printf(info->exact_tokens > 0 ? "; the first %d tokens are as they were computed\n"
                                  : "; no token is as it was computed\n",
           (int)info->exact_tokens);
}

static int print_layers(const quire_file_info *info) {
    static const cli_column columns[] = {
        {"layer", false}, {"K:V", false}, {"heads x KV x size", false},
        {"window", true}, {"keep", true}, {"shared", false}};
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (int32_t first = 0, last; first < info->n_layers; first = last + 1) {
        const quire_layer *l = &info->layers[first];
        for (last = first; last + 1 < info->n_layers && same_layer(l, &info->layers[last + 1]);)
            last++;
        cli_table_cell(&table, first == last ? "%d" : "%d-%d", (int)first, (int)last);
        cli_table_cell(&table, "%s", cli_pair_text((quire_pair){l->k, l->v}).text);
        char size[SHAPE_BYTES];
        snprintf(size, sizeof size, l->k_dim == l->v_dim ? "%d" : "%dx%d", (int)l->k_dim,
                 (int)l->v_dim);
        cli_table_cell(&table, "%dx%dx%s", (int)l->n_heads, (int)l->n_kv_heads, size);
        cli_table_cell(&table, "%d", (int)l->window);
        cli_table_cell(&table, "%d", (int)l->keep);
        cli_table_cell(&table, "%s", l->share < 0 ? "" : "yes");
    }
    return cli_table_print(&table, stdout);
}

static int print_sections(const quire_file_info *info) {
    static const cli_column columns[] = {
        {"section", false}, {"offset", true}, {"bytes", true}, {"XXH3-128", false}};
    cli_table table;
    cli_table_start(&table, columns, sizeof columns / sizeof columns[0]);
    for (int32_t i = 0; i < info->n_sections; i++) {
        const quire_file_section *s = &info->sections[i];
        cli_table_cell(&table, strcmp(s->name, "pages") == 0 ? "%s %d" : "%s", s->name,
                       (int)s->layer_class);
        cli_table_cell(&table, "%llu", (unsigned long long)s->offset);
        cli_table_cell(&table, "%llu", (unsigned long long)s->bytes);
        cli_table_cell(&table, "%s", hex_of(s->checksum).text);
    }
    return cli_table_print(&table, stdout);
}

static int print_info(const char *path, const quire_file_info *info, const verdict *v) {
    printf("file      %s: %s, format %u, pages of format %u\n", path, cli_bytes(info->bytes).text,
           (unsigned)info->version, (unsigned)info->page_format);
    print_identity(info);
    print_tokens(info);
    print_history(info);
    printf(
        "cache     packed pages %s; raw rows (open page, page sealed last, %d sinks) %s of %s\n\n",
        cli_bytes(info->packed_bytes).text, (int)info->sinks, cli_bytes(info->raw_bytes).text,
        cli_raw_names[info->raw]);
    int status = print_layers(info);
    putchar('\n');
    if (status == CLI_OK)
        status = print_sections(info);
    if (v->status == QUIRE_OK)
        printf("\nsound: every byte was checked\n");
    return status;
}

/* ------------------------------------------------------------------ JSON */

static json_t *verdict_json(const char *path, const verdict *v) {
    return json_pack("{s:o, s:b, s:s, s:o}", "file", cli_json_text(path), "sound",
                     (int)(v->status == QUIRE_OK), "status", quire_status_name(v->status), "reason",
                     cli_json_text(v->reason));
}

static json_t *layers_json(const quire_file_info *info) {
    json_t *list = json_array();
    for (int32_t i = 0; i < info->n_layers; i++) {
        const quire_layer *l = &info->layers[i];
        cli_json_append(&list,
                        json_pack("{s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "layer",
                                  (int)i, "k", quire_codec_name(l->k), "v", quire_codec_name(l->v),
                                  "n_heads", (int)l->n_heads, "n_kv_heads", (int)l->n_kv_heads,
                                  "k_dim", (int)l->k_dim, "v_dim", (int)l->v_dim, "window",
                                  (int)l->window, "keep", (int)l->keep, "share", (int)l->share));
    }
    return list;
}

static json_t *sections_json(const quire_file_info *info) {
    json_t *list = json_array();
    for (int32_t i = 0; i < info->n_sections; i++) {
        const quire_file_section *s = &info->sections[i];
        cli_json_append(&list,
                        json_pack("{s:s, s:i, s:I, s:I, s:s}", "name", s->name, "class",
                                  (int)s->layer_class, "offset", (json_int_t)s->offset, "bytes",
                                  (json_int_t)s->bytes, "xxh3_128", hex_of(s->checksum).text));
    }
    return list;
}

static json_t *tokens_json(const quire_file_info *info) {
    json_t *list = json_array();
    for (int32_t i = 0; i < info->n_tokens; i++)
        cli_json_append(&list, json_integer(info->tokens[i]));
    return list;
}

static json_t *history_json(const quire_file_info *info) {
    json_t *list = json_array();
    for (uint32_t one = 1; one <= QUIRE_HISTORY_ALL; one <<= 1)
        if (info->history & one)
            cli_json_append(&list, json_string(quire_history_name((quire_history)one)));
    return list;
}

static int print_json(const char *path, const quire_file_info *info, const verdict *v) {
    json_t *root = verdict_json(path, v);
    if (info && root) {
        json_t *more =
            json_pack("{s:i, s:i, s:I, s:i, s:i, s:i, s:I, s:I, s:s, s:i}", "version",
                      (int)info->version, "page_format", (int)info->page_format, "bytes",
                      (json_int_t)info->bytes, "length", (int)info->length, "n_tokens",
                      (int)info->n_tokens, "exact_tokens", (int)info->exact_tokens, "packed_bytes",
                      (json_int_t)info->packed_bytes, "raw_bytes", (json_int_t)info->raw_bytes,
                      "raw", cli_raw_names[info->raw], "sinks", (int)info->sinks);
        json_t *identity = is_text(info->identity, info->identity_bytes)
                               ? json_stringn(info->identity, info->identity_bytes)
                               : json_null();
        const bool built = more && json_object_update(root, more) == 0 &&
                           json_object_set_new(root, "identity", identity) == 0 &&
                           json_object_set_new(root, "tokens", tokens_json(info)) == 0 &&
                           json_object_set_new(root, "history", history_json(info)) == 0 &&
                           json_object_set_new(root, "layers", layers_json(info)) == 0 &&
                           json_object_set_new(root, "sections", sections_json(info)) == 0;
        json_decref(more);
        if (!built) {
            json_decref(root);
            root = NULL;
        }
    }
    return cli_print_json(root);
}

/* ------------------------------------------------------------------ command */

int cli_inspect_file(const char *path, bool json) {
    quire_file *file;
    quire_file_info info;
    verdict v = {.status = quire_file_open(&file, path)};
    const bool opened = v.status == QUIRE_OK;
    if (opened) {
        quire_file_get_info(file, &info);
        v.status = quire_file_check(file);
    }
    if (v.status != QUIRE_OK)
        snprintf(v.reason, sizeof v.reason, "%s", quire_last_error());
    int status = CLI_OK;
    if (json)
        status = print_json(path, opened ? &info : NULL, &v);
    else if (opened)
        status = print_info(path, &info, &v);
    quire_file_close(file);
    if (v.status == QUIRE_OK)
        return status;
    fflush(stdout);
    cli_error(opened ? "'%s' is not sound: %s (%s)" : "cannot inspect '%s': %s (%s)", path,
              v.reason, quire_status_text(v.status));
    return CLI_FAILURE;
}

/* cmd_store_import.c: quire store import. Adds the pages of saved caches to a store. */
#include "command.h"
#include "options/args.h"
#include "options/store_args.h"
#include "output/progress.h"
#include "output/report.h"
#include "output/text_table.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct import_options {
    const char *directory;
    size_t max_bytes;
    bool json;
} import_options;

typedef struct imported {
    quire_store_key key;
    quire_store_added added;
    int32_t n_tokens;
} imported;

static void on_progress(void *user, int32_t done, int32_t total) {
    cli_progress_update(user, done, total);
}

static int import(quire_store *store, const char *path, imported *result) {
    quire_file *file;
    quire_file_info info;
    quire_status status = quire_file_open(&file, path);
    if (status == QUIRE_OK) {
        cli_progress progress;
        quire_store_file_options options;
        quire_store_file_options_default(&options);
        options.on_progress = on_progress;
        options.user = &progress;
        quire_file_get_info(file, &info);
        result->n_tokens = info.length / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
        cli_progress_start(&progress, "import");
        status = quire_store_import(store, file, &options, &result->key, &result->added);
        cli_progress_end(&progress);
        quire_file_close(file);
    }
    if (status == QUIRE_OK)
        return CLI_OK;
    cli_error("cannot import '%s': %s (%s)", path, quire_last_error(), quire_status_text(status));
    return CLI_FAILURE;
}

static int import_all(const import_options *chosen, const cli_rest *files, json_t **list) {
    quire_store *store;
    int status = cli_store_change(chosen->directory, true, chosen->max_bytes, &store);
    if (status != CLI_OK)
        return status;
    for (size_t i = 0; i < files->n && status == CLI_OK; i++) {
        imported one = {0};
        status = import(store, files->words[i], &one);
        if (status != CLI_OK)
            break;
        const cli_key key = cli_key_text(&one.key);
        if (chosen->json)
            cli_json_append(
                list, json_pack("{s:o, s:s, s:i, s:i, s:I}", "file", cli_json_text(files->words[i]),
                                "key", key.text, "n_tokens", (int)one.n_tokens, "added_pages",
                                (int)one.added.pages, "added_bytes", (json_int_t)one.added.bytes));
        else
            printf("%.16s  %s: %d tokens in full pages, %d new pages (%s)\n", key.text,
                   files->words[i], (int)one.n_tokens, (int)one.added.pages,
                   cli_bytes(one.added.bytes).text);
    }
    quire_store_close(store);
    return status;
}

int cli_store_import_run(int argc, char **argv) {
    import_options chosen = {0};
    cli_rest files = {.name = "FILE", .required = true};
    const cli_argument arguments[] = {{"STORE", &chosen.directory, true}};
    const cli_option options[] = {
        cli_size("size", &chosen.max_bytes, 0x1p20, 0x1p50,
                 "set the limit of the store (default: keep the current one; 8G when created)"),
        cli_flag("json", &chosen.json, "print JSON"),
    };
    static const char *const examples[] = {"quire store import pages book.quire notes.quire", NULL};
    const cli_usage usage = {
        .command = "store import",
        .about = "Adds the full pages of saved caches to a store, which is created "
                 "if it does not exist. Every byte of a file is checked first. "
                 "'quire run --store DIR' with the same model and codecs then finds "
                 "the pages.\n"
                 "A cache that was resealed, requantized, shifted or trimmed inside "
                 "a page is rejected, because computing its text would give other "
                 "pages ('quire inspect FILE' shows the history of a cache).\n"
                 "Tokens that were generated one at a time may differ in the last "
                 "bits from the same tokens in a prompt; the store keeps those of "
                 "the file." CLI_STORE_PLACE,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .arguments = arguments,
        .n_arguments = 1,
        .rest = &files,
        .examples = examples};
    int status;
    files.words = malloc(((size_t)argc + 1) * sizeof *files.words);
    if (!files.words)
        return cli_quire_error("cannot import", QUIRE_E_NOMEM, "out of memory");
    if (cli_args_parse(&usage, argc, argv, &status)) {
        json_t *list = json_array();
        status = import_all(&chosen, &files, &list);
        if (chosen.json && status == CLI_OK)
            status = cli_print_json(list);
        else
            json_decref(list);
    }
    free(files.words);
    return status;
}

/* cmd_store_export.c: quire store export. Writes a stored text as a saved cache. */
#include "command.h"
#include "options/args.h"
#include "options/store_args.h"
#include "output/output.h"
#include "output/progress.h"
#include "output/report.h"
#include "output/text_table.h"

#include <stdio.h>

static void on_progress(void *user, int32_t done, int32_t total) {
    cli_progress_update(user, done, total);
}

static int export(quire_store *store, const quire_store_key *key, const char *path) {
    cli_progress progress;
    quire_store_file_options options;
    quire_store_file_options_default(&options);
    options.on_progress = on_progress;
    options.user = &progress;
    cli_progress_start(&progress, "export");
    quire_status status = quire_store_export(store, key, path, &options);
    cli_progress_end(&progress);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot export the text", status, NULL);
}

static int report(const char *path, const quire_store_key *key, bool json) {
    quire_file *file;
    quire_file_info info;
    quire_status status = quire_file_open(&file, path);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot read the exported file", status, NULL);
    quire_file_get_info(file, &info);
    int result = CLI_OK;
    if (json)
        result = cli_print_json(json_pack("{s:o, s:s, s:i, s:I}", "file", cli_json_text(path),
                                          "key", cli_key_text(key).text, "n_tokens",
                                          (int)info.n_tokens, "bytes", (json_int_t)info.bytes));
    else
        printf("%s: %d tokens, %s\n", path, (int)info.n_tokens, cli_bytes(info.bytes).text);
    quire_file_close(file);
    return result;
}

int cli_store_export_run(int argc, char **argv) {
    const char *directory = NULL, *digits = NULL, *path = NULL;
    bool json = false;
    const cli_argument arguments[] = {{"STORE", &directory, true}, {"KEY", &digits, true}};
    const cli_option options[] = {
        cli_with_letter(cli_string("output", &path, "FILE", "the file to write (required)"), 'o'),
        cli_flag("json", &json, "print JSON"),
    };
    static const char *const examples[] = {
        "quire store export pages 3f9a1c -o book.quire",
        "quire inspect book.quire",
        "quire run -m smollm2 --load book.quire --append -p 'In short:'",
        NULL,
    };
    const cli_usage usage = {
        .command = "store export",
        .about = "Writes the text that ends at page KEY as a saved cache, a file for 'quire "
                 "inspect', 'quire run --load' and 'quire convert'. 'quire store list' prints the "
                 "keys; the first digits of a key are enough." CLI_STORE_PLACE,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .arguments = arguments,
        .n_arguments = 2,
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    if (!path) {
        cli_error("store export: no output file was given; give -o FILE");
        return CLI_USAGE;
    }
    quire_store *store;
    quire_store_key key;
    status = cli_output_check(path);
    if (status == CLI_OK)
        status = cli_store_read(directory, &store);
    if (status != CLI_OK)
        return status;
    status = cli_store_name(store, digits, &key);
    if (status == CLI_OK)
        status = export(store, &key, path);
    quire_store_close(store);
    return status == CLI_OK ? report(path, &key, json) : status;
}

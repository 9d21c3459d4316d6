/* cmd_store_remove.c: quire store remove. Removes texts from a store. */
#include "command.h"
#include "options/args.h"
#include "options/store_args.h"
#include "output/report.h"

#include <stdio.h>

int cli_store_remove_run(int argc, char **argv) {
    const char *directory = NULL, *digits = NULL;
    bool json = false, all = false;
    const cli_argument arguments[] = {{"STORE", &directory, true}, {"KEY", &digits, false}};
    const cli_option options[] = {
        cli_flag("all", &all, "remove every text"),
        cli_flag("json", &json, "print JSON"),
    };
    static const char *const examples[] = {"quire store remove pages 3f9a1c",
                                           "quire store remove pages --all", NULL};
    const cli_usage usage = {
        .command = "store remove",
        .about = "Removes page KEY, the pages that continue it, and the pages "
                 "before it that no other text uses. 'quire store list' "
                 "prints the keys; the first digits of a key are enough." CLI_STORE_PLACE,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .arguments = arguments,
        .n_arguments = 2,
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    if (all == (digits != NULL)) {
        cli_error("store remove: give either a KEY or --all");
        return CLI_USAGE;
    }
    quire_store *store;
    quire_store_key key;
    int32_t n_pages = 0;
    status = cli_store_change(directory, false, 0, &store);
    if (status != CLI_OK)
        return status;
    if (digits)
        status = cli_store_name(store, digits, &key);
    if (status == CLI_OK) {
        quire_status removed = quire_store_remove(store, digits ? &key : NULL, &n_pages);
        status =
            removed == QUIRE_OK ? CLI_OK : cli_quire_error("cannot remove the text", removed, NULL);
    }
    quire_store_close(store);
    if (status != CLI_OK)
        return status;
    if (json)
        return cli_print_json(json_pack("{s:i}", "removed_pages", (int)n_pages));
    printf("%d pages removed\n", (int)n_pages);
    return CLI_OK;
}

/* cmd_store_verify.c: quire store verify. Checks every record of a store. */
#include "command.h"
#include "options/args.h"
#include "options/store_args.h"
#include "output/progress.h"
#include "output/report.h"

#include <stdio.h>

static void on_progress(void *user, int64_t done, int64_t total) {
    cli_progress_update(user, done, total);
}

static int report(const quire_store_verdict *v, bool removed, bool json) {
    int status = CLI_OK;
    if (json)
        status = cli_print_json(json_pack("{s:I, s:I, s:I, s:b, s:b}", "records",
                                          (json_int_t)v->records, "bad", (json_int_t)v->bad, "lost",
                                          (json_int_t)v->lost, "sound", (int)(v->bad == 0),
                                          "removed", (int)(removed && v->bad > 0)));
    else if (v->bad == 0)
        printf("sound: every byte of %lld records was checked\n", (long long)v->records);
    else
        printf("%lld of %lld records are bad%s\n", (long long)v->bad, (long long)v->records,
               removed ? " and were removed"
                       : "; --delete removes them, as the next request for one would");
    if (!json && v->lost > 0)
        printf("%lld records cannot be reached, because a page before them is missing\n",
               (long long)v->lost);
    return status == CLI_OK && v->bad > 0 && !removed ? CLI_FAILURE : status;
}

int cli_store_verify_run(int argc, char **argv) {
    const char *directory = NULL;
    bool json = false, delete_bad = false;
    const cli_argument arguments[] = {{"STORE", &directory, true}};
    const cli_option options[] = {
        cli_flag("delete", &delete_bad, "remove bad records"),
        cli_flag("json", &json, "print JSON"),
    };
    static const char *const examples[] = {"quire store verify pages",
                                           "quire store verify pages --delete", NULL};
    const cli_usage usage = {
        .command = "store verify",
        .about =
            "Checks every byte of every record in a store. The exit status is 1 if bad records "
            "remain; --delete removes them, and their pages are computed again when they are "
            "needed. If LMDB's own pages are damaged, the store cannot be opened: remove its "
            "directory." CLI_STORE_PLACE,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .arguments = arguments,
        .n_arguments = 1,
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    quire_store *store;
    status = delete_bad ? cli_store_change(directory, false, 0, &store)
                        : cli_store_read(directory, &store);
    if (status != CLI_OK)
        return status;
    cli_progress progress;
    quire_store_verdict verdict;
    quire_store_verify_options how;
    quire_store_verify_options_default(&how);
    how.remove = delete_bad;
    how.on_progress = on_progress;
    how.user = &progress;
    cli_progress_start(&progress, "verify");
    quire_status verified = quire_store_verify(store, &how, &verdict);
    cli_progress_end(&progress);
    quire_store_close(store);
    if (verified != QUIRE_OK)
        return cli_quire_error("cannot verify the store", verified, NULL);
    return report(&verdict, delete_bad, json);
}

/* cmd_store_stat.c: quire store stat. Prints the size and the counters of a store. */
#include "command.h"
#include "options/args.h"
#include "options/store_args.h"
#include "output/report.h"
#include "output/text_table.h"

#include <stdio.h>

static int print_text(const char *place, const quire_store_stats *s) {
    char name[QUIRE_STORE_PLACE_TEXT];
    quire_store_place_text(place, name);
    const uint64_t asked = s->hit_pages + s->missed_pages;
    printf("store     %s: %lld pages of %d tokens in %lld records, %s\n", name, (long long)s->pages,
           QUIRE_PAGE_TOKENS, (long long)s->records, cli_bytes(s->bytes).text);
    printf("size      %s of at most %s\n", cli_bytes(s->file_bytes).text,
           s->max_bytes ? cli_bytes(s->max_bytes).text : "what the machine has");
    printf("requested %llu pages, of which %llu were found (%.1f %%)\n", (unsigned long long)asked,
           (unsigned long long)s->hit_pages,
           asked ? 100.0 * (double)s->hit_pages / (double)asked : 0.0);
    printf("changed   %llu pages added, %llu evicted, %llu bad records removed\n",
           (unsigned long long)s->added_pages, (unsigned long long)s->evicted_pages,
           (unsigned long long)s->bad_records);
    return CLI_OK;
}

static int print_json(const quire_store_stats *s) {
    return cli_print_json(json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pages", (json_int_t)s->pages,
        "records", (json_int_t)s->records, "bytes", (json_int_t)s->bytes, "file_bytes",
        (json_int_t)s->file_bytes, "max_bytes", (json_int_t)s->max_bytes, "hit_pages",
        (json_int_t)s->hit_pages, "missed_pages", (json_int_t)s->missed_pages, "added_pages",
        (json_int_t)s->added_pages, "evicted_pages", (json_int_t)s->evicted_pages, "bad_records",
        (json_int_t)s->bad_records));
}

int cli_store_stat_run(int argc, char **argv) {
    const char *directory = NULL;
    bool json = false;
    const cli_argument arguments[] = {{"STORE", &directory, true}};
    const cli_option options[] = {cli_flag("json", &json, "print JSON")};
    static const char *const examples[] = {"quire store stat pages --json", NULL};
    const cli_usage usage = {
        .command = "store stat",
        .about = "Prints the size of a store, and how many pages were found, added and evicted "
                 "since it was created." CLI_STORE_PLACE,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .arguments = arguments,
        .n_arguments = 1,
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    quire_store *store;
    quire_store_stats stats;
    status = cli_store_read(directory, &store);
    if (status != CLI_OK)
        return status;
    quire_status got = quire_store_get_stats(store, &stats);
    quire_store_close(store);
    if (got != QUIRE_OK)
        return cli_quire_error("cannot read the store", got, NULL);
    return json ? print_json(&stats) : print_text(directory, &stats);
}

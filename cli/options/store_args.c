/* store_args.c: opens stores and finds pages in them. */
#include "options/store_args.h"

#include "command.h"
#include "output/report.h"

static int open_store(const char *place, const quire_store_options *options, quire_store **store) {
    quire_status status = quire_store_open(store, place, options);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot open the store", status, NULL);
}

int cli_store_read(const char *place, quire_store **store) {
    quire_store_options options;
    quire_store_options_default(&options);
    options.read_only = true;
    return open_store(place, &options, store);
}

int cli_store_change(const char *place, bool create, uint64_t max_bytes, quire_store **store) {
    quire_store_options options;
    quire_store_options_default(&options);
    options.create = create;
    options.max_bytes = max_bytes;
    return open_store(place, &options, store);
}

int cli_store_name(quire_store *store, const char *digits, quire_store_key *key) {
    quire_status status = quire_store_key_find(store, digits, key);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot find the page", status, NULL);
}

cli_key cli_key_text(const quire_store_key *key) {
    cli_key out;
    quire_store_key_text(key, out.text);
    return out;
}

/* cmd_store.c: quire store: what can be done with one. */
#include "command.h"

#include <stddef.h>

const cli_command cli_store_commands[] = {
    {"export", "write a stored text as a saved cache", cli_store_export_run, NULL},
    {"import", "put the pages of saved caches into a store", cli_store_import_run, NULL},
    {"list", "the texts of a store", cli_store_list_run, NULL},
    {"remove", "drop a text, or all", cli_store_remove_run, NULL},
    {"stat", "size, hits and misses", cli_store_stat_run, NULL},
    {"verify", "read every byte of a store", cli_store_verify_run, NULL},
    {NULL, NULL, NULL, NULL},
};

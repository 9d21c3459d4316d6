/* cmd_store.c: the commands of quire store. */
#include "command.h"

#include <stddef.h>

const cli_command cli_store_commands[] = {
    {"list", "list the texts in a store", cli_store_list_run, NULL},
    {"stat", "print the size of a store, and its hits and misses", cli_store_stat_run, NULL},
    {"verify", "check every byte of a store", cli_store_verify_run, NULL},
    {"import", "add the pages of saved caches to a store", cli_store_import_run, NULL},
    {"export", "write a stored text as a saved cache", cli_store_export_run, NULL},
    {"remove", "remove a text, or all texts", cli_store_remove_run, NULL},
    {NULL, NULL, NULL, NULL},
};

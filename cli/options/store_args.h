/* store_args.h: opens stores and finds pages in them. All functions that return int return an exit
 * status, after a message if they failed. */
#ifndef CLI_OPTIONS_STORE_ARGS_H
#define CLI_OPTIONS_STORE_ARGS_H

#include "quire_store.h"

/* What the commands of quire store are given. */
#define CLI_STORE_PLACE "\nSTORE is a directory, or a Redis server: redis://HOST[:PORT][/DB]."

/* Opens an existing store read-only. */
int cli_store_read(const char *place, quire_store **store);
/* Opens a store for writing. create: creates it if it does not exist. max_bytes: as in
 * quire_store_options. */
int cli_store_change(const char *place, bool create, uint64_t max_bytes, quire_store **store);
/* Finds the page whose key begins with `digits`. */
int cli_store_name(quire_store *store, const char *digits, quire_store_key *key);

typedef struct cli_key {
    char text[QUIRE_STORE_KEY_TEXT];
} cli_key;

cli_key cli_key_text(const quire_store_key *key);

#endif

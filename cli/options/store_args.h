/* store_args.h: what the commands on a store share. What fails has printed why. */
#ifndef CLI_OPTIONS_STORE_ARGS_H
#define CLI_OPTIONS_STORE_ARGS_H

#include "quire_store.h"

/* A store that is there, to be looked at. Exit status. */
int cli_store_read(const char *directory, quire_store **store);
/* To be changed. create: made if it is not there; max_bytes as quire_store_options has it. Exit
 * status. */
int cli_store_change(const char *directory, bool create, uint64_t max_bytes, quire_store **store);
/* The page that the first digits of a key name. Exit status. */
int cli_store_name(quire_store *store, const char *digits, quire_store_key *key);

typedef struct cli_key {
    char text[QUIRE_STORE_KEY_TEXT];
} cli_key;

cli_key cli_key_text(const quire_store_key *key);

#endif

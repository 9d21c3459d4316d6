/* api_keys.h: the keys that clients must send. */
#ifndef SERVER_HTTP_API_KEYS_H
#define SERVER_HTTP_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>

enum { SRV_KEY_BYTES = 256 }; /* a key is shorter */

typedef struct srv_api_keys srv_api_keys;

/* Reads a file with one key per line; empty lines and lines that begin with # do not count. NULL:
 * `why` is a sentence. */
srv_api_keys *srv_api_keys_open(const char *path, char *why, size_t n_why);
void srv_api_keys_close(srv_api_keys *keys); /* NULL is fine */
/* Reads the file again. False: `why` is a sentence, and the old keys stay valid. */
bool srv_api_keys_reload(srv_api_keys *keys, char *why, size_t n_why);
int srv_api_keys_count(srv_api_keys *keys);
/* A warning about the file's permissions, or NULL. */
const char *srv_api_keys_warning(srv_api_keys *keys);

/* Whether the value of an Authorization header, NULL if there is none, is "Bearer KEY" with one of
 * the keys. How long it takes depends on the number of keys and on what was sent, but not on how
 * much of a key was guessed right. */
bool srv_api_keys_allow(srv_api_keys *keys, const char *authorization);

#endif

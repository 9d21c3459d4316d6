/* Keys of pages: BLAKE2b-256, so that two texts or two models cannot share a page, neither by
 * accident nor on purpose. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

_Static_assert(sizeof(quire_store_key) <= crypto_generichash_blake2b_BYTES_MAX,
               "a key is a digest");

/* Separates the uses of the hash. */
static const uint8_t ROOT[crypto_generichash_blake2b_PERSONALBYTES] = "quire root 1",
                     SALT[crypto_generichash_blake2b_PERSONALBYTES] = "quire salt 1",
                     PAGE[crypto_generichash_blake2b_PERSONALBYTES] = "quire page 1";

_Static_assert(QUIRE_SALT_DIGEST == sizeof(quire_store_key), "both are digests of one length");

static void start(crypto_generichash_blake2b_state *state, const uint8_t *person) {
    crypto_generichash_blake2b_init_salt_personal(state, NULL, 0, sizeof(quire_store_key), NULL,
                                                  person);
}

static void add_sized(crypto_generichash_blake2b_state *state, const void *bytes, size_t n_bytes) {
    uint8_t size[8];
    quire__put64(size, n_bytes);
    crypto_generichash_blake2b_update(state, size, sizeof size);
    if (n_bytes > 0)
        crypto_generichash_blake2b_update(state, bytes, n_bytes);
}

void quire__salt_digest(const void *salt, size_t salt_bytes, uint8_t digest[QUIRE_SALT_DIGEST]) {
    crypto_generichash_blake2b_state state;
    start(&state, SALT);
    add_sized(&state, salt, salt_bytes);
    crypto_generichash_blake2b_final(&state, digest, QUIRE_SALT_DIGEST);
}

void quire__root_key(const void *identity, size_t identity_bytes, const uint8_t *layers,
                     size_t layers_bytes, const uint8_t *salt_digest, quire_store_key *key) {
    crypto_generichash_blake2b_state state;
    start(&state, ROOT);
    add_sized(&state, identity, identity_bytes);
    add_sized(&state, layers, layers_bytes);
    if (salt_digest)
        add_sized(&state, salt_digest, QUIRE_SALT_DIGEST);
    crypto_generichash_blake2b_final(&state, key->byte, sizeof key->byte);
}

int quire__compare_ids(const void *a, const void *b) {
    const quire_record_id *x = a, *y = b;
    const int keys = memcmp(x->key.byte, y->key.byte, sizeof x->key.byte);
    return keys != 0 ? keys : x->piece < y->piece ? -1 : x->piece > y->piece;
}

size_t quire__first_behind(const void *list, size_t n, size_t size, const quire_record_id *after) {
    size_t low = 0, high = after ? n : 0;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (quire__compare_ids((const char *)list + middle * size, after) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void quire__page_key(const quire_store_key *parent, const int32_t *tokens, quire_store_key *key) {
    uint8_t bytes[QUIRE_RECORD_TOKENS];
    for (int i = 0; i < QUIRE_PAGE_TOKENS; i++)
        quire__put32(bytes + 4 * i, (uint32_t)tokens[i]);
    crypto_generichash_blake2b_state state;
    start(&state, PAGE);
    crypto_generichash_blake2b_update(&state, parent->byte, sizeof parent->byte);
    crypto_generichash_blake2b_update(&state, bytes, sizeof bytes);
    crypto_generichash_blake2b_final(&state, key->byte, sizeof key->byte);
}

quire_status quire__chain_init(quire_chain *chain, const quire_store_text *text, uint8_t *layers,
                               size_t layers_bytes, int32_t n_pages) {
    *chain = (quire_chain){.layers = layers, .layers_bytes = layers_bytes, .n_pages = n_pages};
    chain->key = malloc(((size_t)n_pages + 1) * sizeof *chain->key);
    if (!layers || !chain->key) {
        quire__chain_free(chain);
        return quire__fail(QUIRE_E_NOMEM, "out of memory: cannot make the keys of %d pages",
                           (int)n_pages);
    }
    chain->has_salt = text->salt_bytes > 0;
    if (chain->has_salt)
        quire__salt_digest(text->salt, text->salt_bytes, chain->salt);
    quire__root_key(text->identity, text->identity_bytes, layers, layers_bytes,
                    chain->has_salt ? chain->salt : NULL, &chain->key[0]);
    for (int32_t p = 0; p < n_pages; p++)
        quire__page_key(&chain->key[p], text->tokens + (size_t)p * QUIRE_PAGE_TOKENS,
                        &chain->key[p + 1]);
    return QUIRE_OK;
}

quire_status quire__chain_of_pool(quire_chain *chain, const quire_store_text *text,
                                  const quire_pool *pool, int32_t n_pages) {
    const size_t n_bytes = quire__layers_bytes(pool);
    uint8_t *layers = malloc(n_bytes);
    if (layers)
        quire__layers_describe(pool, false, layers);
    return quire__chain_init(chain, text, layers, n_bytes, n_pages);
}

void quire__chain_free(quire_chain *chain) {
    free(chain->layers);
    free(chain->key);
    *chain = (quire_chain){0};
}

void quire_store_key_text(const quire_store_key *key, char text[QUIRE_STORE_KEY_TEXT]) {
    sodium_bin2hex(text, QUIRE_STORE_KEY_TEXT, key->byte, sizeof key->byte);
}

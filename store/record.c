/* Records: header, tokens, payload, checksum. docs/FORMAT.md, section 11, is the definition. */
#include <string.h>

#include "store/store.h"

static const char MAGIC[8] = "\x89QLEAF\r\n";

enum { RECORD_VERSION = 1 };

size_t quire__record_bytes(uint32_t depth, size_t payload_bytes) {
    return QUIRE_RECORD_HEAD + (depth > 0 ? QUIRE_RECORD_TOKENS : 0) + payload_bytes +
           QUIRE_RECORD_SUM;
}

uint8_t *quire__record_start(uint8_t *bytes, const quire_record *r, const int32_t *tokens) {
    memcpy(bytes, MAGIC, sizeof MAGIC);
    quire__put32(bytes + 8, RECORD_VERSION);
    quire__put32(bytes + 12, r->id.piece);
    quire__put32(bytes + 16, r->depth);
    quire__put32(bytes + 20, r->depth > 0 ? QUIRE_PAGE_TOKENS : 0);
    quire__put64(bytes + 24, r->payload_bytes);
    memcpy(bytes + 32, r->id.key.byte, sizeof r->id.key.byte);
    memcpy(bytes + 64, r->parent.byte, sizeof r->parent.byte);
    memcpy(bytes + 96, r->root.byte, sizeof r->root.byte);
    bytes += QUIRE_RECORD_HEAD;
    for (int i = 0; r->depth > 0 && i < QUIRE_PAGE_TOKENS; i++, bytes += 4)
        quire__put32(bytes, (uint32_t)tokens[i]);
    return bytes;
}

void quire__record_seal(uint8_t *bytes, size_t n_bytes) {
    const quire_digest digest = quire__hash_of(bytes, n_bytes - QUIRE_RECORD_SUM);
    memcpy(bytes + n_bytes - QUIRE_RECORD_SUM, digest.byte, sizeof digest.byte);
}

bool quire__record_read(const uint8_t *bytes, size_t n_bytes, const quire_record_id *id,
                        quire_record *r) {
    if (n_bytes < quire__record_bytes(0, 0) || memcmp(bytes, MAGIC, sizeof MAGIC) != 0 ||
        quire__get32(bytes + 8) != RECORD_VERSION)
        return false;
    const uint64_t payload_bytes = quire__get64(bytes + 24);
    *r = (quire_record){.id = {.piece = quire__get32(bytes + 12)},
                        .depth = quire__get32(bytes + 16)};
    memcpy(r->id.key.byte, bytes + 32, sizeof r->id.key.byte);
    memcpy(r->parent.byte, bytes + 64, sizeof r->parent.byte);
    memcpy(r->root.byte, bytes + 96, sizeof r->root.byte);
    if (r->depth > QUIRE_FILE_TOKENS_MAX / QUIRE_PAGE_TOKENS ||
        quire__get32(bytes + 20) != (r->depth > 0 ? QUIRE_PAGE_TOKENS : 0) ||
        payload_bytes > n_bytes || quire__record_bytes(r->depth, (size_t)payload_bytes) != n_bytes)
        return false;
    r->payload_bytes = (size_t)payload_bytes;
    r->tokens = r->depth > 0 ? bytes + QUIRE_RECORD_HEAD : NULL;
    r->payload = bytes + QUIRE_RECORD_HEAD + (r->depth > 0 ? QUIRE_RECORD_TOKENS : 0);
    return quire__same_id(&r->id, id);
}

bool quire__record_sound(const uint8_t *bytes, size_t n_bytes) {
    const quire_digest digest = quire__hash_of(bytes, n_bytes - QUIRE_RECORD_SUM);
    return memcmp(bytes + n_bytes - QUIRE_RECORD_SUM, digest.byte, sizeof digest.byte) == 0;
}

bool quire__record_has_tokens(const quire_record *r, const int32_t *tokens) {
    for (int i = 0; r->tokens && i < QUIRE_PAGE_TOKENS; i++)
        if ((int32_t)quire__get32(r->tokens + 4 * i) != tokens[i])
            return false;
    return r->tokens != NULL;
}

/* ------------------------------------------------------------------ roots */

size_t quire__root_bytes(size_t identity_bytes, size_t layers_bytes, bool has_salt) {
    return 16 + identity_bytes + layers_bytes + (has_salt ? QUIRE_SALT_DIGEST : 0);
}

void quire__root_write(uint8_t *payload, const quire_root *root) {
    quire__put64(payload, root->identity_bytes);
    quire__put64(payload + 8, root->layers_bytes);
    if (root->identity_bytes > 0)
        memcpy(payload + 16, root->identity, root->identity_bytes);
    payload += 16 + root->identity_bytes;
    memcpy(payload, root->layers, root->layers_bytes);
    if (root->salt_digest)
        memcpy(payload + root->layers_bytes, root->salt_digest, QUIRE_SALT_DIGEST);
}

bool quire__root_read(const quire_record *r, quire_root *root) {
    if (r->depth != 0 || r->id.piece != 0 || r->payload_bytes < 16)
        return false;
    const uint64_t identity_bytes = quire__get64(r->payload),
                   layers_bytes = quire__get64(r->payload + 8);
    if (identity_bytes > r->payload_bytes || layers_bytes > r->payload_bytes)
        return false;
    const size_t plain = quire__root_bytes((size_t)identity_bytes, (size_t)layers_bytes, false);
    const bool has_salt = r->payload_bytes == plain + QUIRE_SALT_DIGEST;
    if (r->payload_bytes != plain && !has_salt)
        return false;
    *root = (quire_root){.identity = r->payload + 16,
                         .layers = r->payload + 16 + identity_bytes,
                         .identity_bytes = (size_t)identity_bytes,
                         .layers_bytes = (size_t)layers_bytes,
                         .salt_digest = has_salt ? r->payload + plain : NULL};
    quire_store_key key;
    quire__root_key(root->identity, root->identity_bytes, root->layers, root->layers_bytes,
                    root->salt_digest, &key);
    return quire__same_key(&key, &r->id.key);
}

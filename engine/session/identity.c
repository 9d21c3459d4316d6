/* identity.c: what a cache of a model belongs to, from the bytes of its file.
 *
 *   quire model 1
 *   architecture llama
 *   config     ..   every key of the architecture: sizes, RoPE, windows, norms
 *   tokenizer  ..   every key of the vocabulary but the chat template
 *   weights    ..   names, types, shapes and places of all tensors, and their data
 *
 * and, for a session, how it computes: the same model and tokens then give the same bytes
 *
 *   computing repacked
 *   rounding   ..   feedback of the layers that are rounded by what queries look at; "plain":
 *              there are none
 */
#include "base/file.h"
#include "base/hash.h"
#include "file/snapshot.h"
#include "model/file_digest.h"
#include "session/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK_BYTES = 1 << 20, IDENTITY_BYTES = 512 };

static const size_t SIZES[GGUF_TYPE_COUNT] = {
    [GGUF_TYPE_UINT8] = 1,  [GGUF_TYPE_INT8] = 1,  [GGUF_TYPE_UINT16] = 2,  [GGUF_TYPE_INT16] = 2,
    [GGUF_TYPE_UINT32] = 4, [GGUF_TYPE_INT32] = 4, [GGUF_TYPE_FLOAT32] = 4, [GGUF_TYPE_BOOL] = 1,
    [GGUF_TYPE_UINT64] = 8, [GGUF_TYPE_INT64] = 8, [GGUF_TYPE_FLOAT64] = 8};

static void add_text(quire_hash *hash, const char *text) {
    quire__hash_add(hash, text, strlen(text) + 1);
}

static void add_number(quire_hash *hash, int64_t number) {
    quire__hash_add(hash, &number, sizeof number);
}

static void add_array(quire_hash *hash, const struct gguf_context *meta, int64_t key) {
    const enum gguf_type type = gguf_get_arr_type(meta, key);
    const size_t n = gguf_get_arr_n(meta, key);
    add_number(hash, (int64_t)type);
    add_number(hash, (int64_t)n);
    if (type == GGUF_TYPE_ARRAY)
        return; /* arrays of arrays: no architecture has them, and ggml does not read them */
    for (size_t i = 0; type == GGUF_TYPE_STRING && i < n; i++)
        add_text(hash, gguf_get_arr_str(meta, key, i));
    if (type != GGUF_TYPE_STRING && n > 0)
        quire__hash_add(hash, gguf_get_arr_data(meta, key), n * SIZES[type]);
}

static void add_value(quire_hash *hash, const struct gguf_context *meta, int64_t key) {
    const enum gguf_type type = gguf_get_kv_type(meta, key);
    add_text(hash, gguf_get_key(meta, key));
    add_number(hash, (int64_t)type);
    if (type == GGUF_TYPE_ARRAY)
        add_array(hash, meta, key);
    else if (type == GGUF_TYPE_STRING)
        add_text(hash, gguf_get_val_str(meta, key));
    else
        quire__hash_add(hash, gguf_get_val_data(meta, key), SIZES[type]);
}

/* All keys that start with `prefix`, in the order of the file. */
static quire_digest digest_keys(const struct gguf_context *meta, const char *prefix,
                                const char *except) {
    quire_hash hash;
    quire__hash_start(&hash);
    for (int64_t key = 0; key < gguf_get_n_kv(meta); key++) {
        const char *name = gguf_get_key(meta, key);
        if (strncmp(name, prefix, strlen(prefix)) == 0 &&
            !(except && strncmp(name, except, strlen(except)) == 0))
            add_value(&hash, meta, key);
    }
    return quire__hash_end(&hash);
}

/* Data is read, not touched in the mapping: hashing must not make the weights resident. */
static quire_status digest_weights(void *user, quire_digest *digest) {
    const quire__gguf *file = user;
    quire_hash hash;
    quire__hash_start(&hash);
    const int64_t n = gguf_get_n_tensors(file->meta);
    for (int64_t i = 0; i < n; i++) {
        add_text(&hash, gguf_get_tensor_name(file->meta, i));
        add_number(&hash, (int64_t)gguf_get_tensor_type(file->meta, i));
        for (int d = 0; d < GGML_MAX_DIMS; d++)
            add_number(&hash, gguf_get_tensor_ne(file->meta, i)[d]);
        add_number(&hash, (int64_t)gguf_get_tensor_offset(file->meta, i));
    }
    uint8_t *chunk = malloc(CHUNK_BYTES);
    if (!chunk)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    quire_status status = QUIRE_OK;
    for (size_t at = gguf_get_data_offset(file->meta), left;
         at < file->map_bytes && status == QUIRE_OK; at += left) {
        left = file->map_bytes - at < CHUNK_BYTES ? file->map_bytes - at : CHUNK_BYTES;
        status = quire__read_at(file->fd, at, chunk, left);
        if (status == QUIRE_OK)
            quire__hash_add(&hash, chunk, left);
    }
    free(chunk);
    *digest = quire__hash_end(&hash);
    return status;
}

static void append_digest(char *text, const char *name, quire_digest digest) {
    char digits[33];
    quire__digest_text(digest, digits);
    sprintf(text + strlen(text), "%s %s\n", name, digits);
}

static quire_status make_identity(quire_model *model) {
    quire__gguf *file = &model->file;
    char prefix[sizeof file->architecture + 2];
    quire_digest weights;
    QUIRE_TRY(quire__file_digest(model->cache_dir, file->fd, (int64_t)time(NULL), digest_weights,
                                 file, &weights));
    char *text = malloc(IDENTITY_BYTES);
    if (!text)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    snprintf(prefix, sizeof prefix, "%s.", file->architecture);
    snprintf(text, IDENTITY_BYTES, "quire model 1\narchitecture %s\n", file->architecture);
    append_digest(text, "config", digest_keys(file->meta, prefix, NULL));
    append_digest(text, "tokenizer",
                  digest_keys(file->meta, "tokenizer.", "tokenizer.chat_template"));
    append_digest(text, "weights", weights);
    model->identity = text;
    return QUIRE_OK;
}

quire_status quire_model_identity(const quire_model *constant, const char **text) {
    quire_model *model = (quire_model *)constant; /* only what is remembered changes */
    if (!model || !text)
        return quire__fail(QUIRE_E_INVALID, "model or text is NULL");
    pthread_mutex_lock(&model->identity_lock);
    const quire_status status = model->identity ? QUIRE_OK : make_identity(model);
    *text = model->identity;
    pthread_mutex_unlock(&model->identity_lock);
    return status;
}

/* ------------------------------------------------------------------ sessions */

quire_status quire__session_identity(const quire_session *session, char **text) {
    const char *identity;
    const quire_model *model = quire_session_model(session);
    QUIRE_TRY(quire_model_identity(model, &identity));
    char *all = malloc(IDENTITY_BYTES);
    if (!all)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    quire_digest rounding;
    snprintf(all, IDENTITY_BYTES, "%scomputing %s\n", identity, model->weights_as);
    if (quire__rounding_digest(quire_session_pool(session), &rounding))
        append_digest(all, "rounding", rounding);
    else
        strcat(all, "rounding plain\n");
    *text = all;
    return QUIRE_OK;
}

quire_status quire_session_save(const quire_session *session, const quire_seq *seq,
                                const char *path, const int32_t *tokens, int32_t n_tokens) {
    if (!session || !tokens || n_tokens < 1)
        return quire__fail(QUIRE_E_INVALID, "session or tokens is NULL, or there are none");
    const char *identity = NULL;
    QUIRE_TRY(quire_session_identity((quire_session *)(uintptr_t)session,
                                     &identity)); /* only remembered in it */
    quire_save_options options;
    quire_save_options_default(&options);
    options.identity = identity;
    options.identity_bytes = strlen(identity);
    options.tokens = tokens;
    options.n_tokens = n_tokens;
    return quire_seq_save(seq, path, &options);
}

/* The model must be the same; how it computed need not. The sentence has the name of the first
 * line that differs. */
static quire_status check_identity(const quire_file_info *info, const char *mine) {
    const char *theirs = info->identity;
    const size_t n = info->identity_bytes;
    if (n >= strlen(mine) && memcmp(theirs, mine, strlen(mine)) == 0)
        return QUIRE_OK;
    static const char start[] = "quire model ";
    if (n < sizeof start - 1 || memcmp(theirs, start, sizeof start - 1) != 0)
        return quire__fail(QUIRE_E_IDENTITY, "the file does not say which model computed it");
    size_t at = 0, line = 0;
    for (; at < n && mine[at] && theirs[at] == mine[at]; at++)
        line = theirs[at] == '\n' ? at + 1 : line;
    return quire__fail(QUIRE_E_IDENTITY, "the cache belongs to another model: its %.*s differs",
                       (int)strcspn(mine + line, " \n"), mine + line);
}

static quire_status check_tokens(const quire_session *session, const quire_file_info *info) {
    if (info->n_tokens == 0)
        return quire__fail(QUIRE_E_FORMAT, "the file has no tokens");
    for (int32_t i = 0; i < info->n_tokens; i++)
        if (info->tokens[i] < 0 || info->tokens[i] >= quire_session_model(session)->n_vocab)
            return quire__fail(QUIRE_E_FORMAT,
                               "the file's token %d is %d, which the model does not have", (int)i,
                               (int)info->tokens[i]);
    if (info->length > quire_session_context(session))
        return quire__fail(QUIRE_E_TOO_BIG, "the file has %d tokens, more than a context of %d",
                           (int)info->length, (int)quire_session_context(session));
    return QUIRE_OK;
}

quire_status quire_session_load(quire_session *session, quire_file *file, bool reseal,
                                quire_seq **seq) {
    if (!session || !file || !seq)
        return quire__fail(QUIRE_E_INVALID, "session, file or sequence is NULL");
    *seq = NULL;
    const char *identity = NULL;
    quire_file_info info;
    quire_file_get_info(file, &info);
    QUIRE_TRY(quire_model_identity(quire_session_model(session), &identity));
    QUIRE_TRY(check_identity(&info, identity));
    QUIRE_TRY(check_tokens(session, &info));
    quire_load_options options;
    quire_load_options_default(&options);
    options.any_identity = true; /* compared above, with a better sentence */
    options.reseal = reseal;
    return quire_seq_load(quire_session_pool(session), file, &options, seq);
}

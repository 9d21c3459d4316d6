/* vocab_check.c: a set of the tokens' texts. */
#include "vocab_check.h"

#include <stdlib.h>
#include <string.h>

static const char KEY[] = "tokenizer.ggml.tokens";

static uint32_t hash(const char *text) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 16777619u;
    return h;
}

/* -1: all differ; else a token that is there twice. `slots` (a power of two, more than n) holds -1. */
static int64_t find_double(const quire__gguf *file, int64_t key, int32_t n, int32_t *slots, size_t n_slots) {
    for (int32_t i = 0; i < n; i++) {
        const char *text = gguf_get_arr_str(file->meta, key, (size_t)i);
        if (!*text)
            continue; /* libllama gives it a name of its own */
        size_t at = hash(text) & (n_slots - 1);
        for (; slots[at] >= 0; at = (at + 1) & (n_slots - 1))
            if (strcmp(gguf_get_arr_str(file->meta, key, (size_t)slots[at]), text) == 0)
                return i;
        slots[at] = i;
    }
    return -1;
}

quire_status quire__vocab_check(const quire__gguf *file, int32_t n_vocab) {
    const int64_t key = gguf_find_key(file->meta, KEY);
    if (key < 0 || gguf_get_kv_type(file->meta, key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(file->meta, key) != GGUF_TYPE_STRING)
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is missing or not a list of strings", file->path, KEY);
    const size_t n = gguf_get_arr_n(file->meta, key);
    if (n > (size_t)n_vocab)
        return quire__fail(QUIRE_E_MODEL, "'%s': %zu tokens in %s, %d rows in token_embd.weight", file->path, n, KEY,
                           (int)n_vocab);
    size_t n_slots = 16;
    while (n_slots < 2 * n)
        n_slots *= 2;
    int32_t *slots = malloc(n_slots * sizeof *slots);
    if (!slots)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    memset(slots, -1, n_slots * sizeof *slots);
    const int64_t twice = find_double(file, key, (int32_t)n, slots, n_slots);
    free(slots);
    if (twice < 0)
        return QUIRE_OK;
    return quire__fail(QUIRE_E_MODEL, "'%s': token %lld of %s is there twice", file->path, (long long)twice, KEY);
}

/* vocab_check.c: a set of the tokens' texts. */
#include "vocab_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char KEY[] = "tokenizer.ggml.tokens";

static uint32_t hash(const char *text) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 16777619u;
    return h;
}

/* Open addressing; a power of two of slots, more than there are tokens. */
typedef struct token_set {
    const quire__gguf *file;
    int64_t key;
    int32_t *slots; /* -1: free */
    size_t n_slots;
} token_set;

/* The slot of a text: where it is, or where it would be. */
static int32_t *slot_of(const token_set *set, const char *text) {
    size_t at = hash(text) & (set->n_slots - 1);
    while (set->slots[at] >= 0 &&
           strcmp(gguf_get_arr_str(set->file->meta, set->key, (size_t)set->slots[at]), text) != 0)
        at = (at + 1) & (set->n_slots - 1);
    return &set->slots[at];
}

static quire_status fill(const token_set *set, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const char *text = gguf_get_arr_str(set->file->meta, set->key, (size_t)i);
        if (!*text)
            continue; /* libllama gives it a name of its own */
        int32_t *slot = slot_of(set, text);
        if (*slot >= 0)
            return quire__fail(QUIRE_E_MODEL, "'%s': token %d of %s is there twice", set->file->path, (int)i, KEY);
        *slot = i;
    }
    return QUIRE_OK;
}

/* SentencePiece spells what no token has byte by byte, each as <0x41> or as itself. */
static quire_status check_bytes(const token_set *set) {
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        const char itself[2] = {(char)byte, 0};
        if (*slot_of(set, name) < 0 && (byte == 0 || *slot_of(set, itself) < 0))
            return quire__fail(QUIRE_E_MODEL, "'%s': %s has no token %s: not every text could be spelt",
                               set->file->path, KEY, name);
    }
    return QUIRE_OK;
}

static quire_status check_tokens(const token_set *set, int32_t n) {
    const char *kind = NULL;
    QUIRE_TRY(quire__gguf_string(set->file, "tokenizer.ggml.model", &kind));
    if (!kind || strcmp(kind, "none") == 0 || strcmp(kind, "no_vocab") == 0)
        return quire__fail(QUIRE_E_MODEL, "'%s': it has no tokenizer (key tokenizer.ggml.model)", set->file->path);
    QUIRE_TRY(fill(set, n));
    return strcmp(kind, "llama") == 0 ? check_bytes(set) : QUIRE_OK;
}

quire_status quire__vocab_check(const quire__gguf *file, int32_t n_vocab) {
    token_set set = {.file = file, .key = gguf_find_key(file->meta, KEY), .n_slots = 16};
    if (set.key < 0 || gguf_get_kv_type(file->meta, set.key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(file->meta, set.key) != GGUF_TYPE_STRING)
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is missing or not a list of strings", file->path, KEY);
    const size_t n = gguf_get_arr_n(file->meta, set.key);
    if (n > (size_t)n_vocab)
        return quire__fail(QUIRE_E_MODEL, "'%s': %zu tokens in %s, %d rows in token_embd.weight", file->path, n, KEY,
                           (int)n_vocab);
    while (set.n_slots < 2 * n)
        set.n_slots *= 2;
    set.slots = malloc(set.n_slots * sizeof *set.slots);
    if (!set.slots)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    memset(set.slots, -1, set.n_slots * sizeof *set.slots);
    const quire_status status = check_tokens(&set, (int32_t)n);
    free(set.slots);
    return status;
}

/* vocab_check.c: which vocabularies libllama can be given. Its loader and its tokenizers abort the
 * process, or throw through C, on files that nobody checked; what is accepted here was read in its
 * source and is tried by tests/py/test_engine_vocab.py. */
#include "model/vocab_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char KEY[] = "tokenizer.ggml.tokens";

enum { TEXT_MAX = 32 };

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

/* The text that libllama knows a token by: it names empty ones itself. */
static const char *text_of(const token_set *set, int32_t token, char made[TEXT_MAX]) {
    const char *text = gguf_get_arr_str(set->file->meta, set->key, (size_t)token);
    if (*text)
        return text;
    snprintf(made, TEXT_MAX, "[EMPTY_%d]", (int)token);
    return made;
}

/* The slot of a text: where it is, or where it would be. */
static int32_t *slot_of(const token_set *set, const char *text) {
    char made[TEXT_MAX];
    size_t at = hash(text) & (set->n_slots - 1);
    while (set->slots[at] >= 0 && strcmp(text_of(set, set->slots[at], made), text) != 0)
        at = (at + 1) & (set->n_slots - 1);
    return &set->slots[at];
}

static quire_status fill(const token_set *set, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        char made[TEXT_MAX];
        int32_t *slot = slot_of(set, text_of(set, i, made));
        if (*slot >= 0)
            return quire__fail(QUIRE_E_MODEL, "'%s': token %d of %s is there twice",
                               set->file->path, (int)i, KEY);
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
            return quire__fail(QUIRE_E_MODEL,
                               "'%s': %s has no token %s: not every text could be spelt",
                               set->file->path, KEY, name);
    }
    return QUIRE_OK;
}

/* The kinds that the architectures here come with. libllama has more, but bert aborts on byte
 * tokens, rwkv without a token for a new line, and nobody has gone through the tables of the
 * others. */
static const char *const KINDS[] = {"llama", "gpt2", "gemma4"};

static quire_status check_kind(const quire__gguf *file, const char **kind) {
    *kind = NULL;
    QUIRE_TRY(quire__gguf_string(file, "tokenizer.ggml.model", kind));
    if (!*kind || strcmp(*kind, "none") == 0 || strcmp(*kind, "no_vocab") == 0)
        return quire__fail(QUIRE_E_MODEL, "'%s': it has no tokenizer (key tokenizer.ggml.model)",
                           file->path);
    bool known = false;
    for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++)
        known = known || strcmp(*kind, KINDS[i]) == 0;
    if (!known)
        return quire__fail(
            QUIRE_E_MODEL,
            "'%s': tokenizer.ggml.model is '%s'; only llama, gpt2 and gemma4 are supported",
            file->path, *kind);
    const char *split = NULL; /* how text is cut into words before tokens are sought */
    QUIRE_TRY(quire__gguf_string(file, "tokenizer.ggml.pre", &split));
    if (split && strcmp(split, "whitespace") == 0) /* libllama aborts on two spaces in a row */
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': tokenizer.ggml.pre is 'whitespace', which is not supported",
                           file->path);
    return QUIRE_OK;
}

quire_status quire__vocab_check(const quire__gguf *file, int32_t n_vocab) {
    const char *kind;
    QUIRE_TRY(check_kind(file, &kind));
    token_set set = {.file = file, .key = gguf_find_key(file->meta, KEY), .n_slots = 16};
    if (set.key < 0 || gguf_get_kv_type(file->meta, set.key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(file->meta, set.key) != GGUF_TYPE_STRING)
        return quire__fail(QUIRE_E_MODEL, "'%s': key %s is missing or not a list of strings",
                           file->path, KEY);
    const size_t n = gguf_get_arr_n(file->meta, set.key);
    if (n == 0)
        return quire__fail(QUIRE_E_MODEL, "'%s': the list of tokens %s is empty", file->path, KEY);
    if (n > (size_t)n_vocab)
        return quire__fail(QUIRE_E_MODEL, "'%s': %zu tokens in %s, %d rows in token_embd.weight",
                           file->path, n, KEY, (int)n_vocab);
    while (set.n_slots < 2 * n)
        set.n_slots *= 2;
    set.slots = malloc(set.n_slots * sizeof *set.slots);
    if (!set.slots)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    memset(set.slots, -1, set.n_slots * sizeof *set.slots);
    quire_status status = fill(&set, (int32_t)n);
    if (status == QUIRE_OK && strcmp(kind, "llama") == 0)
        status = check_bytes(&set);
    free(set.slots);
    return status;
}

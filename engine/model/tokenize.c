/* tokenize.c: text and tokens, through libllama's vocabulary. */
#include "model/deep_stack.h"
#include "model/ggml_log.h"
#include "model/model.h"
#include "model/vocab_check.h"

#include <llama.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct llama_vocab *vocab_of(const quire_model *model) {
    return llama_model_get_vocab(model->vocab);
}

quire_status quire__vocab_load(quire_model *model, const char *path) {
    QUIRE_TRY(quire__vocab_check(&model->file, model->n_vocab));
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.n_gpu_layers = 0;
    quire__ggml_log_clear();
    model->vocab = llama_model_load_from_file(path, params);
    if (!model->vocab)
        return quire__fail(QUIRE_E_MODEL, "'%s': the vocabulary cannot be loaded: %s", path,
                           quire__ggml_log_last());
    /* libllama would abort at the first text. */
    if (llama_vocab_get_add_bos(vocab_of(model)) &&
        llama_vocab_bos(vocab_of(model)) == LLAMA_TOKEN_NULL)
        return quire__fail(QUIRE_E_MODEL,
                           "'%s': texts are to begin with a BOS token "
                           "(tokenizer.ggml.add_bos_token), but there is none: "
                           "tokenizer.ggml.bos_token_id is missing or not the number of a token",
                           path);
    quire__chat_find_template(model);
    return QUIRE_OK;
}

void quire__vocab_free(quire_model *model) {
    if (model->vocab)
        llama_model_free(model->vocab);
}

/* ------------------------------------------------------------------ text -> tokens */

/* Whether UTF-8 of four bytes begins here whose value is beyond Unicode. */
static bool beyond_unicode(const char *text, size_t n_left) {
    const unsigned char *byte = (const unsigned char *)text;
    if (n_left < 4 || (byte[0] & 0xF8) != 0xF0)
        return false;
    for (int i = 1; i < 4; i++)
        if ((byte[i] & 0xC0) != 0x80)
            return false;
    return byte[0] > 0xF4 || (byte[0] == 0xF4 && byte[1] > 0x8F);
}

bool quire__text_beyond_unicode(const char *text, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++)
        if (beyond_unicode(text + i, n_bytes - i))
            return true;
    return false;
}

/* libllama reads bytes that are no UTF-8 as U+FFFD, but throws on values beyond Unicode, which
 * nobody could catch. They become bytes that are no UTF-8. A free()able copy; NULL: no memory. */
static char *made_readable(const char *text, size_t n_bytes) {
    char *copy = malloc(n_bytes + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        if (beyond_unicode(copy + i, n_bytes - i))
            copy[i] = '\xFF';
    return copy;
}

/* libllama cuts text into words with std::regex, for many models, and that recurses once for every
 * character of a word: 320 bytes of stack each. A word never goes beyond the end of a line and the
 * white space after it, which may be more than ASCII's. */
enum { SHALLOW_BYTES = 512, STACK_FOR_BYTE = 1024 };

static size_t longest_line(const char *text, size_t n_bytes) {
    size_t longest = 0, start = 0;
    for (size_t i = 1; i <= n_bytes; i++) {
        if (i < n_bytes && (text[i - 1] != '\n' || (unsigned char)text[i] >= 0x80 ||
                            isspace((unsigned char)text[i])))
            continue;
        longest = i - start > longest ? i - start : longest;
        start = i;
    }
    return longest;
}

typedef struct tokenize_call {
    const struct llama_vocab *vocab;
    const char *text;
    int32_t n_bytes, *tokens, capacity, result;
    bool special;
} tokenize_call;

static void tokenize(void *user) {
    tokenize_call *call = user;
    call->result = llama_tokenize(call->vocab, call->text, call->n_bytes, call->tokens,
                                  call->capacity, false, call->special);
}

/* As llama_tokenize, on stack enough. SentencePiece does not recurse, and takes bytes as they
 * come. */
static quire_status tokenize_safely(tokenize_call *call) {
    if (llama_vocab_type(call->vocab) == LLAMA_VOCAB_TYPE_SPM) {
        tokenize(call);
        return QUIRE_OK;
    }
    char *readable = NULL;
    if (quire__text_beyond_unicode(call->text, (size_t)call->n_bytes)) {
        readable = made_readable(call->text, (size_t)call->n_bytes);
        if (!readable)
            return quire__fail(QUIRE_E_NOMEM, "out of memory");
        call->text = readable;
    }
    const size_t line = longest_line(call->text, (size_t)call->n_bytes);
    bool good = true;
    if (line <= SHALLOW_BYTES)
        tokenize(call);
    else
        good = quire__call_deep(line * STACK_FOR_BYTE, tokenize, call);
    free(readable);
    return good ? QUIRE_OK
                : quire__fail(QUIRE_E_NOMEM, "no memory to cut a line of %zu bytes into tokens",
                              line);
}

quire_status quire_model_tokenize(const quire_model *model, const char *text, size_t n_bytes,
                                  int flags, int32_t *tokens, int32_t capacity, int32_t *n_tokens) {
    if (!text || !n_tokens || capacity < 0 || (capacity > 0 && !tokens))
        return quire__fail(QUIRE_E_INVALID, "text, tokens or their number is NULL");
    if (n_bytes > INT32_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "a text of %zu bytes is too long", n_bytes);
    /* Not libllama's add_special, which ends the text too where a model wants that: a prompt goes
     * on. */
    const int32_t n_start =
        (flags & QUIRE_TOKENIZE_START) && llama_vocab_get_add_bos(vocab_of(model)) ? 1 : 0;
    const int32_t room = capacity > n_start ? capacity - n_start : 0;
    tokenize_call call = {.vocab = vocab_of(model),
                          .text = text,
                          .n_bytes = (int32_t)n_bytes,
                          .tokens = room > 0 ? tokens + n_start : NULL,
                          .capacity = room,
                          .special = (flags & QUIRE_TOKENIZE_SPECIAL) != 0};
    QUIRE_TRY(tokenize_safely(&call));
    if (call.result == INT32_MIN)
        return quire__fail(QUIRE_E_TOO_BIG, "a text of %zu bytes is too long", n_bytes);
    const int32_t n = (call.result < 0 ? -call.result : call.result) + n_start;
    *n_tokens = n;
    if (n > capacity)
        return quire__fail(QUIRE_E_TOO_BIG, "the text has %d tokens, more than %d", (int)n,
                           (int)capacity);
    if (n_start)
        tokens[0] = llama_vocab_bos(vocab_of(model));
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ tokens -> text */

static bool known_token(const quire_model *model, int32_t token) {
    return token >= 0 && token < llama_vocab_n_tokens(vocab_of(model));
}

quire_status quire_model_piece(const quire_model *model, int32_t token, char *bytes,
                               size_t capacity, size_t *n_bytes) {
    *n_bytes = 0;
    if (!known_token(model, token)) {
        /* An embedding may have more rows than the vocabulary has tokens: those have no text. */
        return token >= 0 && token < model->n_vocab
                   ? QUIRE_OK
                   : quire__fail(QUIRE_E_INVALID, "there is no token %d", (int)token);
    }
    const int32_t n =
        llama_token_to_piece(vocab_of(model), token, bytes,
                             capacity > INT32_MAX ? INT32_MAX : (int32_t)capacity, 0, false);
    *n_bytes = (size_t)(n < 0 ? -n : n);
    if (n < 0)
        return quire__fail(QUIRE_E_TOO_BIG, "token %d has %d bytes, more than %zu", (int)token,
                           (int)-n, capacity);
    return QUIRE_OK;
}

bool quire_model_ends_text(const quire_model *model, int32_t token) {
    return known_token(model, token) && llama_vocab_is_eog(vocab_of(model), token);
}

/* tokens.c: text and tokens, through libllama's vocabulary. */
#include "model.h"
#include "quiet.h"
#include "vocab_check.h"

#include <llama.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const struct llama_vocab *vocab_of(const quire_model *model) { return llama_model_get_vocab(model->vocab); }

/* A template that libllama does not know is refused here, once, instead of at the first message. */
static void find_template(quire_model *model) {
    const char *text = llama_model_chat_template(model->vocab, NULL);
    const struct llama_chat_message probe = {.role = "user", .content = "x"};
    if (text && llama_chat_apply_template(text, &probe, 1, true, NULL, 0) > 0)
        model->chat_template = text;
}

quire_status quire__vocab_load(quire_model *model, const char *path) {
    QUIRE_TRY(quire__vocab_check(&model->file, model->n_vocab));
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.n_gpu_layers = 0;
    quire__quiet_clear();
    model->vocab = llama_model_load_from_file(path, params);
    if (!model->vocab)
        return quire__fail(QUIRE_E_MODEL, "'%s': the vocabulary cannot be loaded: %s", path, quire__quiet_last());
    find_template(model);
    return QUIRE_OK;
}

void quire__vocab_free(quire_model *model) {
    if (model->vocab)
        llama_model_free(model->vocab);
}

quire_status quire_model_tokenize(const quire_model *model, const char *text, size_t n_bytes, int flags,
                                  int32_t *tokens, int32_t capacity, int32_t *n_tokens) {
    if (!text || !n_tokens || capacity < 0 || (capacity > 0 && !tokens))
        return quire__fail(QUIRE_E_INVALID, "text, tokens or their number is NULL");
    if (n_bytes > INT32_MAX)
        return quire__fail(QUIRE_E_TOO_BIG, "a text of %zu bytes is too long", n_bytes);
    const int32_t n = llama_tokenize(vocab_of(model), text, (int32_t)n_bytes, tokens, capacity,
                                     flags & QUIRE_TOKENIZE_START, (flags & QUIRE_TOKENIZE_SPECIAL) != 0);
    if (n == INT32_MIN)
        return quire__fail(QUIRE_E_TOO_BIG, "a text of %zu bytes is too long", n_bytes);
    *n_tokens = n < 0 ? -n : n;
    if (n < 0)
        return quire__fail(QUIRE_E_TOO_BIG, "the text has %d tokens, more than %d", (int)-n, (int)capacity);
    return QUIRE_OK;
}

static bool known_token(const quire_model *model, int32_t token) {
    return token >= 0 && token < llama_vocab_n_tokens(vocab_of(model));
}

quire_status quire_model_piece(const quire_model *model, int32_t token, char *bytes, size_t capacity, size_t *n_bytes) {
    *n_bytes = 0;
    if (!known_token(model, token)) {
        /* An embedding may have more rows than the vocabulary has tokens: those have no text. */
        return token >= 0 && token < model->n_vocab ? QUIRE_OK
                                                    : quire__fail(QUIRE_E_INVALID, "there is no token %d", (int)token);
    }
    const int32_t n = llama_token_to_piece(vocab_of(model), token, bytes,
                                           capacity > INT32_MAX ? INT32_MAX : (int32_t)capacity, 0, false);
    *n_bytes = (size_t)(n < 0 ? -n : n);
    if (n < 0)
        return quire__fail(QUIRE_E_TOO_BIG, "token %d has %d bytes, more than %zu", (int)token, (int)-n, capacity);
    return QUIRE_OK;
}

bool quire_model_ends_text(const quire_model *model, int32_t token) {
    return known_token(model, token) && llama_vocab_is_eog(vocab_of(model), token);
}

bool quire_model_can_chat(const quire_model *model) { return model->chat_template != NULL; }

quire_status quire_model_chat(const quire_model *model, const quire_message *messages, size_t n_messages, bool reply,
                              char *text, size_t capacity, size_t *n_bytes) {
    if (!model->chat_template)
        return quire__fail(QUIRE_E_UNSUPPORTED, "'%s' has no chat template that is known", model->file.path);
    struct llama_chat_message *list = malloc((n_messages + 1) * sizeof *list);
    if (!list)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n_messages; i++)
        list[i] = (struct llama_chat_message){.role = messages[i].role, .content = messages[i].content};
    const int32_t n = llama_chat_apply_template(model->chat_template, list, n_messages, reply, text,
                                                capacity > INT32_MAX ? INT32_MAX : (int32_t)capacity);
    free(list);
    if (n < 0)
        return quire__fail(QUIRE_E_UNSUPPORTED, "the chat template of '%s' refuses these messages", model->file.path);
    *n_bytes = (size_t)n;
    if (*n_bytes > capacity)
        return quire__fail(QUIRE_E_TOO_BIG, "the conversation has %zu bytes, more than %zu", *n_bytes, capacity);
    return QUIRE_OK;
}

/* tokens.c: what the engine makes of a vocabulary.
 * usage: tokens try MODEL...                    use each vocabulary in every way there is; a line
 *                                               for each with the status, and the reason
 *        tokens MODEL QUESTION [+ QUESTION]...  the model is loaded once for all questions:
 *   text FLAGS TEXT           a line with the tokens of a text
 *   chat FLAGS [ROLE TEXT]... a line with the tokens of a conversation, and a line with those that
 *                             libllama makes of the template's text as a whole, control tokens in
 *                             messages included
 * FLAGS are those of quire_model_tokenize, as a number. */
#include "quire_engine.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 16, MESSAGES_MAX = 32 };

static int32_t tokens[TOKENS_MAX], n_tokens;

static quire_status report(quire_status status) {
    printf("%s %s\n", quire_status_name(status), status == QUIRE_OK ? "" : quire_last_error());
    return status;
}

static void print(const int32_t *list, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        printf("%s%d", i ? " " : "", (int)list[i]);
    printf("\n");
}

static quire_status load(quire_model **model, const char *path) {
    quire_model_options options;
    quire_model_options_default(&options);
    options.repack = false; /* weights are not used */
    return quire_model_load(model, path, &options);
}

/* ------------------------------------------------------------------ try */

static const char *const TEXTS[] = {
    "",
    " ",
    "  ",
    "a",
    "a  b",
    "Hello, world!\n\n  It's 12345 o'clock.\t\r\n",
    "<s></s><unk><pad><|im_end|><|im_start|>",
    "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xC3\xA9\xCC\x81 \xF0\x9F\x98\x80 "
    "\xE2\x96\x81\xC2\xA0\xE3\x80\x80x",
    "\x80\xBF\xC0\xC3\xE0\xA0\xED\xA0\x80\xF0\x9F\xF8\x88\x80\x80\x80\xFE\xFF", /* no UTF-8 */
    "a\xF4\x90\x80\x80 \xF7\xBF\xBF\xBF\xF5\x80\x80\x80",                       /* beyond Unicode */
    "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!\xEF\xBC\x81\xEF\xBC\x81 <sentinel:1> IMGIMGABZ \\ [x] "
    "(y) 's 'LL",
};

static quire_status try_texts(const quire_model *model) {
    char all_bytes[256];
    for (int i = 0; i < 256; i++)
        all_bytes[i] = (char)i;
    for (int flags = 0; flags < 4; flags++) {
        for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
            const quire_status status = quire_model_tokenize(model, TEXTS[i], strlen(TEXTS[i]),
                                                             flags, tokens, TOKENS_MAX, &n_tokens);
            if (status != QUIRE_OK)
                return status;
        }
        const quire_status status =
            quire_model_tokenize(model, all_bytes, 256, flags, tokens, TOKENS_MAX, &n_tokens);
        if (status != QUIRE_OK)
            return status;
    }
    return QUIRE_OK;
}

static quire_status try_chat(const quire_model *model) {
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0] && quire_model_can_chat(model); i++) {
        const quire_message messages[] = {
            {"system", TEXTS[i]}, {"user", TEXTS[i]}, {"assistant", TEXTS[i]}};
        const quire_status status = quire_model_tokenize_chat(
            model, messages, 3, QUIRE_TOKENIZE_START, tokens, TOKENS_MAX, &n_tokens);
        if (status != QUIRE_OK)
            return status;
    }
    return QUIRE_OK;
}

static quire_status try_pieces(const quire_model *model, int32_t n_vocab) {
    static char bytes[1 << 16];
    size_t n_bytes;
    for (int32_t token = -1; token <= n_vocab; token++) {
        const quire_status status = quire_model_piece(model, token, bytes, sizeof bytes, &n_bytes);
        if ((status == QUIRE_OK) != (token >= 0 && token < n_vocab))
            return status;
        quire_model_ends_text(model, token);
    }
    return QUIRE_OK;
}

static quire_status try_sampler(const quire_model *model, int32_t n_vocab, const char *grammar) {
    quire_sampler_options options;
    quire_sampler_options_default(&options);
    options.grammar = grammar;
    options.repeat_penalty = 1.1f;
    options.dry_multiplier = 0.8f;
    quire_sampler *sampler;
    const quire_status status = quire_sampler_create(&sampler, model, &options);
    if (status != QUIRE_OK)
        return status;
    float *logits = calloc((size_t)n_vocab, sizeof *logits);
    const int32_t prompt[] = {0, n_vocab - 1, 0, n_vocab - 1, 0};
    quire_sampler_begin(sampler, prompt, 5);
    for (int i = 0; logits && i < 20; i++) {
        int32_t token;
        if (quire_sampler_next(sampler, logits, &token) != QUIRE_OK)
            break; /* the grammar may allow nothing that this vocabulary has */
    }
    free(logits);
    quire_sampler_free(sampler);
    return QUIRE_OK;
}

static quire_status try_all(const char *path) {
    quire_model *model;
    quire_status status = load(&model, path);
    if (status != QUIRE_OK)
        return status;
    quire_model_info info;
    quire_model_get_info(model, &info);
    status = try_texts(model);
    status = status == QUIRE_OK ? try_chat(model) : status;
    status = status == QUIRE_OK ? try_pieces(model, info.n_vocab) : status;
    status = status == QUIRE_OK ? try_sampler(model, info.n_vocab, NULL) : status;
    status = status == QUIRE_OK ? try_sampler(model, info.n_vocab, "root ::= [^a]*") : status;
    quire_model_free(model);
    return status;
}

/* ------------------------------------------------------------------ text, chat */

static quire_status print_text(const quire_model *model, int flags, const char *text) {
    const quire_status status =
        quire_model_tokenize(model, text, strlen(text), flags, tokens, TOKENS_MAX, &n_tokens);
    if (status == QUIRE_OK)
        print(tokens, n_tokens);
    return status;
}

typedef struct vocabularies {
    const char *path;
    quire_model *model;
    struct llama_model *peer; /* loaded by the first question that needs it */
} vocabularies;

static void print_whole(vocabularies *v, int flags, const struct llama_chat_message *list,
                        size_t n) {
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    if (!v->peer)
        v->peer = llama_model_load_from_file(v->path, params);
    struct llama_model *model = v->peer;
    static char text[1 << 20];
    const int32_t n_bytes =
        llama_chat_apply_template(llama_model_chat_template(model, NULL), list, n,
                                  flags & QUIRE_TOKENIZE_REPLY, text, sizeof text);
    n_tokens = llama_tokenize(llama_model_get_vocab(model), text, n_bytes, tokens, TOKENS_MAX,
                              flags & QUIRE_TOKENIZE_START, true);
    print(tokens, n_tokens);
}

static quire_status print_chat(vocabularies *v, int flags, char **words, int n_words) {
    quire_message messages[MESSAGES_MAX];
    struct llama_chat_message list[MESSAGES_MAX];
    size_t n = 0;
    for (int i = 0; i + 1 < n_words && n < MESSAGES_MAX; i += 2, n++) {
        messages[n] = (quire_message){.role = words[i], .content = words[i + 1]};
        list[n] = (struct llama_chat_message){.role = words[i], .content = words[i + 1]};
    }
    const quire_status status =
        quire_model_tokenize_chat(v->model, messages, n, flags, tokens, TOKENS_MAX, &n_tokens);
    if (status != QUIRE_OK)
        return status;
    print(tokens, n_tokens);
    print_whole(v, flags, list, n);
    return QUIRE_OK;
}

/* words: those of one question. */
static quire_status answer(vocabularies *v, char **words, int n_words) {
    if (n_words == 3 && strcmp(words[0], "text") == 0)
        return print_text(v->model, atoi(words[1]), words[2]);
    if (n_words >= 2 && strcmp(words[0], "chat") == 0)
        return print_chat(v, atoi(words[1]), words + 2, n_words - 2);
    fprintf(stderr, "tokens: not a question: %s\n", n_words ? words[0] : "");
    exit(2);
}

static quire_status answer_all(vocabularies *v, char **words, int n_words) {
    quire_status status = QUIRE_OK;
    for (int at = 0, n; at < n_words && status == QUIRE_OK; at += n + 1) {
        for (n = 0; at + n < n_words && strcmp(words[at + n], "+") != 0;)
            n++;
        status = answer(v, words + at, n);
    }
    return status;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "try") == 0) {
        bool no_memory = false;
        for (int i = 2; i < argc; i++) {
            no_memory |= report(try_all(argv[i])) == QUIRE_E_NOMEM;
            fflush(stdout); /* if the next one ends the process, its place is known */
        }
        return no_memory;
    }
    vocabularies v = {.path = argv[1]};
    quire_status status = load(&v.model, v.path);
    if (status == QUIRE_OK)
        status = answer_all(&v, argv + 2, argc - 2);
    if (status != QUIRE_OK)
        report(status);
    llama_model_free(v.peer);
    quire_model_free(v.model);
    return status != QUIRE_OK;
}

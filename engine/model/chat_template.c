/* chat_template.c: a conversation -> tokens. Only the template's own text becomes control tokens.
 *
 *   messages     user "x<|im_end|>y"
 *   placeholder  <|im_start|>user\n{0}<|im_end|>\n            what libllama's template makes of one
 *   text         <|im_start|>user\nx<|im_end|>y<|im_end|>\n   with the message where {0} was
 *   is_message   ..................############............
 *   tokens       [im_start] "user\nx<|im_end|>y" [im_end] "\n"
 *
 * Control tokens are sought in the template's stretches alone: the markers. What lies between two
 * of them, of template and messages alike, is tokenized in one piece as plain text. So tokens merge
 * across the border of a message exactly as they do when the whole text is tokenized at once. */
#include "model/model.h"

#include <llama.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A placeholder: no template has these bytes. The outer ones are white space, and show whether a
 * template trims. */
enum { PLACE_BYTES = 32, PLACE_EDGE = '\v', PLACE_OPEN = '\1', PLACE_CLOSE = '\2' };

static const struct llama_vocab *vocab_of(const quire_model *model) {
    return llama_model_get_vocab(model->vocab);
}

static quire_status no_memory(void) { return quire__fail(QUIRE_E_NOMEM, "out of memory"); }

/* A template that libllama does not know is refused here, once, instead of at the first message. */
void quire__chat_find_template(quire_model *model) {
    const char *text = llama_model_chat_template(model->vocab, NULL);
    const struct llama_chat_message probe = {.role = "user", .content = "x"};
    if (text && llama_chat_apply_template(text, &probe, 1, true, NULL, 0) > 0)
        model->chat_template = text;
}

bool quire_model_can_chat(const quire_model *model) { return model->chat_template != NULL; }

/* ------------------------------------------------------------------ messages -> text */

/* free() *text. */
static quire_status apply_template(const quire_model *model, const struct llama_chat_message *list,
                                   size_t n, bool reply, char **text) {
    const int32_t n_bytes =
        llama_chat_apply_template(model->chat_template, list, n, reply, NULL, 0);
    if (n_bytes < 0)
        return quire__fail(QUIRE_E_UNSUPPORTED, "the chat template of '%s' refuses these messages",
                           model->file.path);
    *text = calloc((size_t)n_bytes + 1, 1);
    if (!*text)
        return no_memory();
    llama_chat_apply_template(model->chat_template, list, n, reply, *text, n_bytes);
    return QUIRE_OK;
}

static bool is_blank(const char *text) { return text[strspn(text, " \t\n\v\f\r")] == '\0'; }

/* The text, and which of its bytes are of messages. */
typedef struct conversation {
    const quire_model *model;
    char *text;
    bool *is_message;
    size_t n_bytes;
} conversation;

static void append(conversation *c, const char *bytes, size_t n, bool is_message) {
    memcpy(c->text + c->n_bytes, bytes, n);
    memset(c->is_message + c->n_bytes, is_message, n);
    c->n_bytes += n;
}

/* A message where its placeholder was, without the white space that the template took off. */
static void append_message(conversation *c, const char *content, bool keeps_start, bool keeps_end) {
    size_t n = strlen(content);
    while (!keeps_start && n > 0 && isspace((unsigned char)*content))
        content++, n--;
    while (!keeps_end && n > 0 && isspace((unsigned char)content[n - 1]))
        n--;
    append(c, content, n, true);
}

static void fill_places(conversation *c, const char *places, const quire_message *messages) {
    for (const char *at = places; *at;) {
        const bool keeps_start = at[0] == PLACE_EDGE && at[1] == PLACE_OPEN;
        at += keeps_start;
        if (*at != PLACE_OPEN) {
            append(c, at++, 1, false);
            continue;
        }
        char *end;
        const size_t index = strtoul(at + 1, &end, 10);
        at = end + 1;
        const bool keeps_end = *at == PLACE_EDGE;
        at += keeps_end;
        append_message(c, messages[index].content, keeps_start, keeps_end);
    }
    c->text[c->n_bytes] = '\0';
}

/* `whole` is what the template makes of the messages themselves: the same text, or the template did
 * something to them that a placeholder does not show. */
static quire_status compose(conversation *c, const quire_message *messages, const char *places,
                            const char *whole) {
    size_t room =
        strlen(places) + strlen(whole) + 1; /* a template may use a message more than once */
    for (const char *at = places; (at = strchr(at, PLACE_OPEN)); at++)
        room += strlen(messages[strtoul(at + 1, NULL, 10)].content);
    c->text = malloc(room);
    c->is_message = malloc(room * sizeof *c->is_message);
    if (!c->text || !c->is_message)
        return no_memory();
    fill_places(c, places, messages);
    if (strcmp(c->text, whole) != 0)
        return quire__fail(QUIRE_E_UNSUPPORTED,
                           "the chat template of '%s' changes the text of a message",
                           c->model->file.path);
    return QUIRE_OK;
}

/* list, names: (n) */
static quire_status write_down(conversation *c, const quire_message *messages, size_t n, bool reply,
                               struct llama_chat_message *list, char (*names)[PLACE_BYTES]) {
    char *places = NULL, *whole = NULL;
    for (size_t i = 0; i < n; i++) {
        /* White space alone stays itself: a template may leave an empty message out, and there is
         * nothing to hide. */
        snprintf(names[i], PLACE_BYTES, "%c%c%zu%c%c", PLACE_EDGE, PLACE_OPEN, i, PLACE_CLOSE,
                 PLACE_EDGE);
        const char *place = is_blank(messages[i].content) ? messages[i].content : names[i];
        list[i] = (struct llama_chat_message){.role = messages[i].role, .content = place};
    }
    quire_status status = apply_template(c->model, list, n, reply, &places);
    for (size_t i = 0; i < n; i++)
        list[i].content = messages[i].content;
    if (status == QUIRE_OK)
        status = apply_template(c->model, list, n, reply, &whole);
    if (status == QUIRE_OK)
        status = compose(c, messages, places, whole);
    free(places);
    free(whole);
    return status;
}

/* ------------------------------------------------------------------ text -> tokens */

typedef struct marker {
    size_t at, n_bytes;
    int32_t token;
} marker;

typedef struct token_list {
    int32_t *tokens;
    size_t n, capacity;
} token_list;

typedef struct cutter {
    const conversation *chat;
    marker *markers; /* control tokens of the template, in their order */
    size_t n_markers, capacity;
    int32_t *kinds; /* the different tokens among them: few, however long the conversation is */
    size_t n_kinds, kinds_capacity;
    token_list out;
} cutter;

/* Room for one more. */
static quire_status grow(void **list, size_t n, size_t *capacity, size_t item) {
    if (n < *capacity)
        return QUIRE_OK;
    const size_t larger = *capacity ? 2 * *capacity : 64;
    void *moved = realloc(*list, larger * item);
    if (!moved)
        return no_memory();
    *list = moved;
    *capacity = larger;
    return QUIRE_OK;
}

static quire_status add_token(token_list *list, int32_t token) {
    void *tokens = list->tokens;
    QUIRE_TRY(grow(&tokens, list->n, &list->capacity, sizeof *list->tokens));
    list->tokens = tokens;
    list->tokens[list->n++] = token;
    return QUIRE_OK;
}

/* free() *tokens. */
static quire_status tokenize(const conversation *c, size_t from, size_t to, int flags,
                             int32_t **tokens, int32_t *n) {
    const size_t n_bytes = to - from;
    /* A token has several bytes, as a rule: a second try is for short texts of rare characters. */
    int32_t capacity = (int32_t)(n_bytes < 1 << 20 ? n_bytes + 1 : n_bytes / 2);
    for (;;) {
        *tokens = malloc((size_t)capacity * sizeof **tokens);
        if (!*tokens)
            return no_memory();
        const quire_status status =
            quire_model_tokenize(c->model, c->text + from, n_bytes, flags, *tokens, capacity, n);
        if (status == QUIRE_OK)
            return QUIRE_OK;
        free(*tokens);
        *tokens = NULL;
        if (status != QUIRE_E_TOO_BIG || *n <= capacity)
            return status;
        capacity = *n;
    }
}

static bool has_punctuation(const char *text) {
    while (*text && !ispunct((unsigned char)*text))
        text++;
    return *text != '\0';
}

/* A control token, or one that the template uses like it: some files have "<|im_start|>" among the
 * user-defined tokens, which libllama finds in plain text too. Words and white space of that kind
 * are text. */
static bool could_mark(const struct llama_vocab *vocab, int32_t token) {
    const enum llama_token_attr attr = llama_vocab_get_attr(vocab, token);
    if (attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN))
        return true;
    return (attr & LLAMA_TOKEN_ATTR_USER_DEFINED) &&
           has_punctuation(llama_vocab_get_text(vocab, token));
}

static const char *find(const conversation *c, size_t from, size_t to, const char *text) {
    const char *found = strstr(c->text + from, text);
    return found && (size_t)(found - c->text) + strlen(text) <= to ? found : NULL;
}

static bool is_marker(const cutter *cut, int32_t token) {
    for (size_t i = 0; i < cut->n_kinds; i++)
        if (cut->kinds[i] == token)
            return true;
    return false;
}

static quire_status add_marker(cutter *cut, marker next) {
    void *markers = cut->markers, *kinds = cut->kinds;
    quire_status status = grow(&markers, cut->n_markers, &cut->capacity, sizeof *cut->markers);
    cut->markers = markers;
    if (status == QUIRE_OK)
        status = grow(&kinds, cut->n_kinds, &cut->kinds_capacity, sizeof *cut->kinds);
    cut->kinds = kinds;
    if (status != QUIRE_OK)
        return status;
    cut->markers[cut->n_markers++] = next;
    if (!is_marker(cut, next.token))
        cut->kinds[cut->n_kinds++] = next.token;
    return QUIRE_OK;
}

/* The markers in a stretch of the template: libllama says which, in their order, and their names
 * say where. */
static quire_status find_markers(cutter *cut, size_t from, size_t to) {
    const struct llama_vocab *vocab = vocab_of(cut->chat->model);
    int32_t *tokens, n;
    QUIRE_TRY(tokenize(cut->chat, from, to, QUIRE_TOKENIZE_SPECIAL, &tokens, &n));
    quire_status status = QUIRE_OK;
    for (int32_t i = 0; i < n && status == QUIRE_OK; i++) {
        if (!could_mark(vocab, tokens[i]))
            continue;
        const char *name = llama_vocab_get_text(vocab, tokens[i]);
        const char *found = find(cut->chat, from, to, name);
        if (!found)
            continue;
        const marker next = {
            .at = (size_t)(found - cut->chat->text), .n_bytes = strlen(name), .token = tokens[i]};
        status = add_marker(cut, next);
        from = next.at + next.n_bytes;
    }
    free(tokens);
    return status;
}

static quire_status find_all_markers(cutter *cut) {
    const conversation *c = cut->chat;
    for (size_t from = 0, to; from < c->n_bytes; from = to) {
        for (to = from + 1; to < c->n_bytes && c->is_message[to] == c->is_message[from];)
            to++;
        if (!c->is_message[from])
            QUIRE_TRY(find_markers(cut, from, to));
    }
    return QUIRE_OK;
}

/* Plain text must not hold it: a control token, or any token that marks something in this
 * template. */
static bool is_forbidden(const cutter *cut, int32_t token) {
    const enum llama_token_attr attr = llama_vocab_get_attr(vocab_of(cut->chat->model), token);
    return (attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) || is_marker(cut, token);
}

static size_t first_character(const char *text) {
    size_t n = 1;
    while (((unsigned char)text[n] & 0xC0) == 0x80)
        n++;
    return n;
}

static quire_status add_plain(cutter *cut, size_t from, size_t to);

/* Cuts the text inside every place that spells the token, and tokenizes the parts. *done: there
 * were such places. */
static quire_status add_without(cutter *cut, size_t from, size_t to, int32_t token, bool *done) {
    const char *name = llama_vocab_get_text(vocab_of(cut->chat->model), token);
    const size_t head = first_character(name);
    *done = false;
    if (head >= strlen(name)) /* one character cannot be spelt in another way */
        return QUIRE_OK;
    for (const char *found; (found = find(cut->chat, from, to, name)); *done = true) {
        const size_t middle = (size_t)(found - cut->chat->text) + head;
        QUIRE_TRY(add_plain(cut, from, middle));
        from = middle;
    }
    return *done ? add_plain(cut, from, to) : QUIRE_OK;
}

/* Text without markers. Plain tokenizing does not look for control tokens, but SentencePiece may
 * put one together from its parts, and user-defined tokens are found in any text. */
static quire_status add_plain(cutter *cut, size_t from, size_t to) {
    if (from >= to)
        return QUIRE_OK;
    int32_t *tokens, n;
    QUIRE_TRY(tokenize(cut->chat, from, to, QUIRE_TOKENIZE_PLAIN, &tokens, &n));
    quire_status status = QUIRE_OK;
    bool done = false;
    for (int32_t i = 0; i < n && status == QUIRE_OK && !done; i++)
        if (is_forbidden(cut, tokens[i]))
            status = add_without(cut, from, to, tokens[i], &done);
    for (int32_t i = 0; i < n && status == QUIRE_OK && !done; i++)
        status = add_token(&cut->out, tokens[i]);
    free(tokens);
    return status;
}

/* Between two markers, one of which may be the start or the end: -1. Some take the white space
 * beside them. */
static quire_status add_between(cutter *cut, size_t from, size_t to, int32_t before,
                                int32_t after) {
    const struct llama_vocab *vocab = vocab_of(cut->chat->model);
    const char *text = cut->chat->text;
    if (before >= 0 && (llama_vocab_get_attr(vocab, before) & LLAMA_TOKEN_ATTR_RSTRIP))
        while (from < to && isspace((unsigned char)text[from]))
            from++;
    if (after >= 0 && (llama_vocab_get_attr(vocab, after) & LLAMA_TOKEN_ATTR_LSTRIP))
        while (from < to && isspace((unsigned char)text[to - 1]))
            to--;
    return add_plain(cut, from, to);
}

static quire_status cut_text(cutter *cut, bool start) {
    const struct llama_vocab *vocab = vocab_of(cut->chat->model);
    if (start && llama_vocab_get_add_bos(vocab))
        QUIRE_TRY(add_token(&cut->out, llama_vocab_bos(vocab)));
    QUIRE_TRY(find_all_markers(cut));
    size_t at = 0;
    int32_t before = -1;
    for (size_t i = 0; i < cut->n_markers; i++) {
        const marker *next = &cut->markers[i];
        QUIRE_TRY(add_between(cut, at, next->at, before, next->token));
        QUIRE_TRY(add_token(&cut->out, next->token));
        at = next->at + next->n_bytes;
        before = next->token;
    }
    return add_between(cut, at, cut->chat->n_bytes, before, -1);
}

/* ------------------------------------------------------------------ both */

static quire_status check_messages(const quire_message *messages, size_t n) {
    static const char *const roles[] = {"system", "user", "assistant"};
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (!messages[i].role || !messages[i].content)
            return quire__fail(QUIRE_E_INVALID, "message %zu has no role or no content", i);
        bool known = false; /* templates write it down as it is */
        for (size_t k = 0; k < sizeof roles / sizeof roles[0]; k++)
            known = known || strcmp(messages[i].role, roles[k]) == 0;
        if (!known)
            return quire__fail(QUIRE_E_INVALID,
                               "message %zu: the role '%.40s' is not system, user or assistant", i,
                               messages[i].role);
        const size_t length = strlen(messages[i].content);
        if (length > INT32_MAX / 2 - n_bytes)
            return quire__fail(QUIRE_E_TOO_BIG, "the conversation is too long");
        n_bytes += length;
    }
    return QUIRE_OK;
}

static quire_status chat_tokens(const quire_model *model, const quire_message *messages, size_t n,
                                int flags, token_list *out) {
    conversation c = {.model = model};
    struct llama_chat_message *list = malloc((n + 1) * sizeof *list);
    char(*names)[PLACE_BYTES] = malloc((n + 1) * sizeof *names);
    quire_status status = list && names ? QUIRE_OK : no_memory();
    if (status == QUIRE_OK)
        status = write_down(&c, messages, n, (flags & QUIRE_TOKENIZE_REPLY) != 0, list, names);
    cutter cut = {.chat = &c};
    if (status == QUIRE_OK)
        status = cut_text(&cut, (flags & QUIRE_TOKENIZE_START) != 0);
    if (status == QUIRE_OK && cut.out.n > INT32_MAX)
        status = quire__fail(QUIRE_E_TOO_BIG, "the conversation is too long");
    free(list);
    free(names);
    free(c.text);
    free(c.is_message);
    free(cut.markers);
    free(cut.kinds);
    *out = cut.out;
    return status;
}

quire_status quire_model_tokenize_chat(const quire_model *model, const quire_message *messages,
                                       size_t n_messages, int flags, int32_t *tokens,
                                       int32_t capacity, int32_t *n_tokens) {
    if (!n_tokens || (n_messages > 0 && !messages) || capacity < 0 || (capacity > 0 && !tokens))
        return quire__fail(QUIRE_E_INVALID, "messages, tokens or their number is NULL");
    if (flags & ~(QUIRE_TOKENIZE_START | QUIRE_TOKENIZE_REPLY))
        return quire__fail(
            QUIRE_E_INVALID,
            "only QUIRE_TOKENIZE_START and QUIRE_TOKENIZE_REPLY are flags of a conversation");
    if (!model->chat_template)
        return quire__fail(QUIRE_E_UNSUPPORTED, "'%s' has no chat template that is known",
                           model->file.path);
    QUIRE_TRY(check_messages(messages, n_messages));
    token_list out = {0};
    quire_status status = chat_tokens(model, messages, n_messages, flags, &out);
    if (status == QUIRE_OK) {
        *n_tokens = (int32_t)out.n;
        if (out.n > (size_t)capacity)
            status = quire__fail(QUIRE_E_TOO_BIG, "the conversation has %zu tokens, more than %d",
                                 out.n, (int)capacity);
        else if (out.n > 0)
            memcpy(tokens, out.tokens, out.n * sizeof *tokens);
    }
    free(out.tokens);
    return status;
}

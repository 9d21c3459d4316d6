/* chat_text.c: keeps the messages of a conversation and tokenizes them. */
#include "text/chat_text.h"

#include "output/report.h"

#include <stdlib.h>
#include <string.h>

bool cli_chat_add(cli_chat *chat, const char *role, const char *content) {
    if (chat->n_messages == chat->capacity) {
        size_t capacity = chat->capacity ? 2 * chat->capacity : 16;
        quire_message *messages = realloc(chat->messages, capacity * sizeof *messages);
        if (!messages) {
            cli_error("out of memory");
            return false;
        }
        chat->messages = messages;
        chat->capacity = capacity;
    }
    char *copy = malloc(strlen(content) + 1);
    if (!copy) {
        cli_error("out of memory");
        return false;
    }
    strcpy(copy, content);
    chat->messages[chat->n_messages++] = (quire_message){.role = role, .content = copy};
    return true;
}

void cli_chat_clear(cli_chat *chat, size_t n_keep) {
    while (chat->n_messages > n_keep)
        free((char *)(uintptr_t)chat->messages[--chat->n_messages].content);
}

void cli_chat_free(cli_chat *chat) {
    cli_chat_clear(chat, 0);
    free(chat->messages);
    *chat = (cli_chat){0};
}

int32_t *cli_chat_tokens(const quire_model *model, const cli_chat *chat, int flags,
                         int32_t *n_tokens) {
    int32_t *tokens = NULL;
    flags |= QUIRE_TOKENIZE_REPLY;
    quire_status status = quire_model_tokenize_chat(model, chat->messages, chat->n_messages, flags,
                                                    NULL, 0, n_tokens);
    if (status == QUIRE_E_TOO_BIG) {
        const int32_t capacity = *n_tokens;
        tokens = malloc((size_t)capacity * sizeof *tokens);
        status = tokens ? quire_model_tokenize_chat(model, chat->messages, chat->n_messages, flags,
                                                    tokens, capacity, n_tokens)
                        : QUIRE_E_NOMEM;
    }
    if (status == QUIRE_OK && tokens)
        return tokens;
    cli_quire_error("cannot apply the chat template", status,
                    status == QUIRE_OK ? "its result is empty" : NULL);
    free(tokens);
    return NULL;
}

int32_t *cli_chat_tokens_of(const quire_model *model, const char *system, const char *message,
                            int flags, int32_t *n_tokens) {
    cli_chat chat = {0};
    const bool good =
        (!system || cli_chat_add(&chat, "system", system)) && cli_chat_add(&chat, "user", message);
    int32_t *tokens = good ? cli_chat_tokens(model, &chat, flags, n_tokens) : NULL;
    cli_chat_free(&chat);
    return tokens;
}

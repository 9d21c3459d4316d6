/* chat_text.c: keeps messages and writes them down as the model wants them. */
#include "chat_text.h"

#include "report.h"

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

char *cli_chat_text(const quire_model *model, const cli_chat *chat, size_t *n_bytes) {
    char *text = NULL;
    quire_status status = quire_model_chat(model, chat->messages, chat->n_messages, true, NULL, 0, n_bytes);
    if (status == QUIRE_E_TOO_BIG) {
        text = malloc(*n_bytes + 1);
        status = text ? quire_model_chat(model, chat->messages, chat->n_messages, true, text, *n_bytes + 1, n_bytes)
                      : QUIRE_E_NOMEM;
    }
    if (status == QUIRE_OK)
        return text;
    cli_quire_error("cannot apply the chat template", status, NULL);
    free(text);
    return NULL;
}

/* chat_text.h: a conversation, and the text a model sees of it. */
#ifndef CLI_CHAT_TEXT_H
#define CLI_CHAT_TEXT_H

#include "quire_engine.h"

typedef struct cli_chat {
    quire_message *messages; /* content is owned, role is not */
    size_t n_messages, capacity;
} cli_chat;

/* Copies the content. False, with a message, without memory. */
bool cli_chat_add(cli_chat *chat, const char *role, const char *content);
void cli_chat_clear(cli_chat *chat, size_t n_keep); /* keeps the first n_keep messages */
void cli_chat_free(cli_chat *chat);

/* The conversation through the model's template, ready for an answer. free() it. NULL, with a message. */
char *cli_chat_text(const quire_model *model, const cli_chat *chat, size_t *n_bytes);

#endif

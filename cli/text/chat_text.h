/* chat_text.h: a conversation, and its tokens for a model. */
#ifndef CLI_TEXT_CHAT_TEXT_H
#define CLI_TEXT_CHAT_TEXT_H

#include "quire_engine.h"

typedef struct cli_chat {
    quire_message *messages; /* content is owned, role is not */
    size_t n_messages, capacity;
} cli_chat;

/* Copies the content. False, with a message: out of memory. */
bool cli_chat_add(cli_chat *chat, const char *role, const char *content);
void cli_chat_clear(cli_chat *chat, size_t n_keep); /* keeps the first n_keep messages */
void cli_chat_free(cli_chat *chat);

/* The tokens of the conversation in the model's chat template, up to the start of the reply. flags:
 * QUIRE_TOKENIZE_START, or 0 if it follows another text. free() them. NULL, with a message. */
int32_t *cli_chat_tokens(const quire_model *model, const cli_chat *chat, int flags,
                         int32_t *n_tokens);
/* The same for one message, after a system message if `system` is not NULL. */
int32_t *cli_chat_tokens_of(const quire_model *model, const char *system, const char *message,
                            int flags, int32_t *n_tokens);

#endif

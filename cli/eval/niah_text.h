/* niah_text.h: tokens of a long text, of facts to hide in it, and of questions about them. */
#ifndef CLI_EVAL_NIAH_TEXT_H
#define CLI_EVAL_NIAH_TEXT_H

#include "quire_engine.h"

/* An opening and then sentences. A fact can be put between any two of them. */
typedef struct cli_hay {
    int32_t *tokens;
    int32_t *ends; /* (n_ends) tokens up to the end of the opening, of the first sentence, of the
                      second, ... */
    int32_t n_ends;
} cli_hay;

/* Makes at least `n_tokens` by repeating the lines of `file`, or built-in sentences if it is NULL.
 * False, with a message. */
bool cli_hay_make(const quire_model *model, const char *file, int32_t n_tokens, cli_hay *hay);
void cli_hay_free(cli_hay *hay);
/* The last end at or before `n_tokens`; 0 if there is none. */
int32_t cli_hay_end_before(const cli_hay *hay, int32_t n_tokens);

enum { CLI_NEEDLE_TOKENS = 256, CLI_NEEDLES = 64, CLI_ANSWER_TOKENS = 16 };

typedef struct cli_needle {
    int32_t fact[CLI_NEEDLE_TOKENS], question[CLI_NEEDLE_TOKENS];
    int32_t n_fact, n_question;
    char answer[16];                         /* the number that a right answer contains */
    int32_t said[CLI_ANSWER_TOKENS], n_said; /* the right answer as tokens */
} cli_needle;

/* Makes fact `index` modulo CLI_NEEDLES. False, with a message. */
bool cli_needle_make(const quire_model *model, int32_t index, cli_needle *needle);
/* Whether the text contains the number, and not as part of a longer one. */
bool cli_needle_is_in(const cli_needle *needle, const char *text);

#endif

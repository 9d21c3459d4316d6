/* niah_text.h: a long text, facts to hide in it, and questions for them, as tokens. */
#ifndef CLI_EVAL_NIAH_TEXT_H
#define CLI_EVAL_NIAH_TEXT_H

#include "quire_engine.h"

/* An opening and then sentence after sentence. A fact may stand between any two of them. */
typedef struct cli_hay {
    int32_t *tokens;
    int32_t *ends; /* (n_ends) tokens up to the end of the opening, of the first sentence, of the
                      second .. */
    int32_t n_ends;
} cli_hay;

/* At least `n_tokens`. file NULL: sentences of our own, over and over; else the lines of a text,
 * over and over. False, with a message. */
bool cli_hay_make(const quire_model *model, const char *file, int32_t n_tokens, cli_hay *hay);
void cli_hay_free(cli_hay *hay);
/* The last end at or before `n_tokens`; 0 if there is none. */
int32_t cli_hay_end_before(const cli_hay *hay, int32_t n_tokens);

enum { CLI_NEEDLE_TOKENS = 256, CLI_NEEDLES = 64, CLI_ANSWER_TOKENS = 16 };

typedef struct cli_needle {
    int32_t fact[CLI_NEEDLE_TOKENS], question[CLI_NEEDLE_TOKENS];
    int32_t n_fact, n_question;
    char answer[16]; /* what a right continuation of the question contains */
    int32_t said[CLI_ANSWER_TOKENS], n_said; /* that continuation, as tokens */
} cli_needle;

/* CLI_NEEDLES different facts; `index` goes round them. False, with a message. */
bool cli_needle_make(const quire_model *model, int32_t index, cli_needle *needle);
/* Whether a text has the number, and not as a part of another. */
bool cli_needle_is_in(const cli_needle *needle, const char *text);

#endif

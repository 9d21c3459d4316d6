/* niah_text.h: a long text with one fact hidden in it, and the question for it, as tokens. */
#ifndef CLI_NIAH_TEXT_H
#define CLI_NIAH_TEXT_H

#include "quire_engine.h"

typedef struct cli_niah {
    int32_t *tokens; /* (n_tokens): free() */
    int32_t n_tokens;
    char answer[16]; /* what a right continuation contains */
} cli_niah;

/* About `length` tokens, never more, with the fact at `depth` (0: first, 1: last). `seed` picks the fact. False, with a
 * message. */
bool cli_niah_make(const quire_model *model, int32_t length, double depth, uint32_t seed, cli_niah *niah);

#endif

/* lookup_draft.h: guesses at the next tokens, from the text so far. */
#ifndef ENGINE_SESSION_LOOKUP_DRAFT_H
#define ENGINE_SESSION_LOOKUP_DRAFT_H

#include <stdint.h>

/* Looks for the last place where the text's final few tokens stood before, and copies what
 * followed them there. Returns how many tokens, up to max, are in draft. */
int32_t quire__draft_lookup(const int32_t *text, int32_t n_text, int32_t *draft, int32_t max);

#endif

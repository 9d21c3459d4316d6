/* session.h: what other files of the engine need of a session beyond the public calls. */
#ifndef ENGINE_SESSION_SESSION_H
#define ENGINE_SESSION_SESSION_H

#include "graph/graph.h"

/* From the next step on; {0}: nobody. */
void quire__session_observe(quire_session *session, quire__observer observer);

quire_status quire__session_check_idle(const quire_session *session); /* E_STATE: a step is open */
/* E_INVALID: the model has no such token. */
quire_status quire__session_check_tokens(const quire_session *session, const int32_t *tokens,
                                         int32_t n_tokens);
/* quire_session_prefill in steps that end at multiples of `step_rows`, or of max_rows if that is
 * less. */
quire_status quire__session_prefill(quire_session *session, quire_seq *seq, const int32_t *tokens,
                                    int32_t n_tokens, int32_t step_rows,
                                    void (*progress)(void *user, int32_t done), void *user);
/* How many tokens a step may append to a sequence so that afterwards any of them but the first can
 * be taken back exactly: no page leaves a window, and none is sealed that would be reopened from
 * its packed values. 1 or more. */
int32_t quire__session_exact_rows(const quire_session *session, const quire_seq *seq);

#endif

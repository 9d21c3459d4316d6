/* fake_parts.h: what stands below server/http, without a model, for tests of HTTP alone.
 *
 * fake_engine.c   a model and a session that are a pool of libquire's and nothing else
 * fake_sched.c    a scheduler whose jobs do what a script says
 * fake_api.c      requests whose field `script` is that script; replies as plain as can be
 * fake_serve.c    the program: srv_run with options from its command line
 *
 * A script is words with a space between them:
 *   tokens=N    so many events; 3 unless given
 *   words=N     each has so many times the text "word "; 1 unless given
 *   delay=MS    before each of them
 *   fail=N      event N says that the job failed; late=N: that its time was over
 *   refuse=NAME srv_sched_submit refuses: too_long, queue_full, invalid, shutting_down, no_memory
 */
#ifndef TESTS_SERVER_FAKE_PARTS_H
#define TESTS_SERVER_FAKE_PARTS_H

#include "sched/sched.h"

/* The number after `name=` in a script, or `missing`. */
int32_t fake_script_number(const char *script, const char *name, int32_t missing);

/* NULL: quire_last_error() says why. */
quire_session *fake_session_create(void);
void fake_session_free(quire_session *session);

#endif

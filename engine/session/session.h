/* session.h: what calibration needs of a session beyond the public calls. */
#ifndef ENGINE_SESSION_SESSION_H
#define ENGINE_SESSION_SESSION_H

#include "graph/graph.h"

/* From the next step on; {0}: nobody. */
void quire__session_observe(quire_session *session, quire__observer observer);

#endif

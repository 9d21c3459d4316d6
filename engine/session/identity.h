/* identity.h: how a session computes, for what it saves. */
#ifndef ENGINE_SESSION_IDENTITY_H
#define ENGINE_SESSION_IDENTITY_H

#include "model/model.h"

/* A new copy of quire_session_identity's text; free() it. */
quire_status quire__session_identity(const quire_session *session, char **text);

#endif

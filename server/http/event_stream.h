/* event_stream.h: a reply that is sent while it is generated, as server-sent events. */
#ifndef SERVER_HTTP_EVENT_STREAM_H
#define SERVER_HTTP_EVENT_STREAM_H

#include "http/generation.h"

/* Begins the reply to a job that was submitted. A job that fails before its first event gets a
 * plain error, unless it has been waiting for long. */
enum MHD_Result srv_event_stream(srv_generation *generation);

#endif

/* call_splitter.h: the text of a reply, as it arrives -> content and tool calls. What may become
 * the tag of a call is held back, so that no part of one is ever content. */
#ifndef SERVER_API_CALL_SPLITTER_H
#define SERVER_API_CALL_SPLITTER_H

#include "base/growing_text.h"
#include "sched/sched.h"

#include <jansson.h>

typedef struct api_splitter {
    srv_text held;
    size_t n_seen;  /* bytes of it that are known to hold no whole tag */
    bool in_call;   /* behind <tool_call> */
    bool any_calls; /* white space between calls is no content */
} api_splitter;

/* Takes in a piece of text. Adds what is certain to `content` and, as {"name": .., "arguments":
 * ".."}, to the array `calls`. finish: not SRV_RUNNING: this was the last piece. A call that
 * cannot be read, or whose name api_tools_recall would refuse in the next turn, is content; one
 * that was cut off by SRV_LENGTH is dropped. False: out of memory. */
bool api_split(api_splitter *splitter, const char *text, size_t n, srv_finish finish,
               srv_text *content, json_t *calls);
void api_splitter_free(api_splitter *splitter);

#endif

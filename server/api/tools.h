/* tools.h: functions that the model may call.
 *
 * libllama's templates know nothing of tools, so they are described in the system message, in the
 * form of Hermes that many models were trained on. A call is
 *   <tool_call>{"name": "f", "arguments": {..}}</tool_call> */
#ifndef SERVER_API_TOOLS_H
#define SERVER_API_TOOLS_H

#include "api/fields.h"
#include "base/growing_text.h"
#include "api/schema_grammar.h"

#define API_CALL_OPEN "<tool_call>"
#define API_CALL_CLOSE "</tool_call>"

typedef enum api_tool_choice { API_TOOLS_NONE, API_TOOLS_AUTO, API_TOOLS_REQUIRED } api_tool_choice;

typedef struct api_tools {
    const json_t *list; /* NULL: none */
    api_tool_choice choice;
    const char *only; /* REQUIRED: the function to call; NULL: any */
    bool parallel;    /* several calls in one reply */
} api_tools;

/* What a function may be called, here and in a call: 1 to 64 letters, digits, '_', '-' or '.'. */
bool api_is_tool_name(const char *name, size_t n_bytes);
/* `tools`, `tool_choice` and `parallel_tool_calls` of a body. */
bool api_tools_read(const json_t *body, api_tools *tools, api_error *error);
/* What the system message says of them. */
bool api_tools_describe(const api_tools *tools, srv_text *text, api_error *error);
/* Adds the rule `calls`: one or more calls that fit the functions' parameters. */
bool api_tools_grammar(const api_tools *tools, api_grammar *grammar, api_error *error);
/* The calls of an assistant's earlier message as the model wrote them. `param` names the message.
 */
bool api_tools_recall(const json_t *calls, const char *param, srv_text *text, api_error *error);

#endif

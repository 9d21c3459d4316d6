/* api_error_json.c: an error as OpenAI's clients read it. */
#include "api/api.h"
#include "api/json_utf8.h"

#include <jansson.h>
#include <string.h>

char *api_error_json(const api_error *error) {
    json_t *param = error->param[0] ? json_string(error->param) : NULL;
    json_t *root =
        json_pack("{s:{s:o, s:s, s:o, s:s?}}", "error", "message",
                  api_json_utf8(error->message, strnlen(error->message, sizeof error->message)),
                  "type", error->type ? error->type : "server_error", "param",
                  param ? param : json_null(), "code", error->code);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

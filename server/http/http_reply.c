/* http_reply.c: see http_reply.h. */
#include "http/http_reply.h"

#include "http/browser_guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

api_error srv_error(int status, const char *format, ...) {
    static const struct {
        int status;
        const char *type, *code;
    } kinds[] = {{401, "invalid_request_error", "invalid_api_key"},
                 {408, "timeout_error", "timeout"},
                 {413, "invalid_request_error", "request_too_large"},
                 {429, "rate_limit_error", "queue_full"},
                 {503, "server_error", "unavailable"},
                 {504, "timeout_error", "timeout"}};
    api_error error = {.status = status,
                       .type = status < 500 ? "invalid_request_error" : "server_error"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].status == status) {
            error.type = kinds[i].type;
            error.code = kinds[i].code;
        }
    va_list args;
    va_start(args, format);
    vsnprintf(error.message, sizeof error.message, format, args);
    va_end(args);
    return error;
}

enum MHD_Result srv_reply(srv_request *request, int status, struct MHD_Response *response) {
    if (!response)
        return MHD_NO;
    request->status = status;
    if (strcmp(request->method, MHD_HTTP_METHOD_HEAD) == 0)
        request->reply_bytes = 0;
    if (request->extra_name)
        MHD_add_response_header(response, request->extra_name, request->extra_value);
    if (request->id[0])
        MHD_add_response_header(response, "X-Request-Id", request->id);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (request->closes || atomic_load(&request->server->is_draining))
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    srv_cors_add(request, response);
    const enum MHD_Result result =
        MHD_queue_response(request->connection, (unsigned)status, response);
    MHD_destroy_response(response); /* this reference to it */
    return result;
}

enum MHD_Result srv_reply_text(srv_request *request, int status, const char *type, char *text,
                               size_t n_text) {
    static const char no_memory[] = "{\"error\": {\"message\": \"The server is out of memory.\", "
                                    "\"type\": \"server_error\", \"param\": null, "
                                    "\"code\": null}}";
    const bool has_text = text != NULL;
    struct MHD_Response *response =
        has_text ? MHD_create_response_from_buffer(n_text, text, MHD_RESPMEM_MUST_FREE)
                 : MHD_create_response_from_buffer(sizeof no_memory - 1, (void *)no_memory,
                                                   MHD_RESPMEM_PERSISTENT);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    request->reply_bytes = has_text ? n_text : sizeof no_memory - 1;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            has_text ? type : "application/json");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    return srv_reply(request, has_text ? status : 500, response);
}

enum MHD_Result srv_reply_json(srv_request *request, int status, char *json) {
    return srv_reply_text(request, status, "application/json", json, json ? strlen(json) : 0);
}

enum MHD_Result srv_reply_error(srv_request *request, const api_error *error) {
    return srv_reply_json(request, error->status, api_error_json(error));
}

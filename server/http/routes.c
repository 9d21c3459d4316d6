/* routes.c: see routes.h. */
#include "http/routes.h"

#include "http/api_keys.h"
#include "http/browser_guard.h"
#include "http/generation.h"
#include "http/http_reply.h"
#include "http/metrics.h"
#include "http/page_route.h"
#include "http/stats_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ------------------------------------------------------------------ small answers */

static enum MHD_Result health(srv_request *request) {
    const bool is_draining = atomic_load(&request->server->is_draining);
    return srv_reply_json(
        request, is_draining ? 503 : 200,
        strdup(is_draining ? "{\"status\": \"draining\"}" : "{\"status\": \"ok\"}"));
}

static enum MHD_Result metrics(srv_request *request) {
    size_t n = 0;
    char *text = srv_metrics_text(request->server, &n);
    return srv_reply_text(request, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
}

static enum MHD_Result stats(srv_request *request) {
    return srv_reply_json(request, 200, srv_stats_json(request->server));
}

static char *models_json(const srv_http *server) {
    return api_models_json(server->options->model_name, server->started, &server->limits);
}

static enum MHD_Result models(srv_request *request) {
    return srv_reply_json(request, 200, models_json(request->server));
}

/* The entry of /v1/models with the id at the end of the path. */
static enum MHD_Result one_model(srv_request *request) {
    const char *wanted = request->path + strlen("/v1/models/");
    char *list = models_json(request->server), *found = NULL;
    json_t *root = list ? json_loads(list, 0, NULL) : NULL;
    free(list);
    size_t i;
    json_t *model;
    json_array_foreach(json_object_get(root, "data"), i, model) {
        const char *id = json_string_value(json_object_get(model, "id"));
        if (!found && id && strcmp(id, wanted) == 0)
            found = json_dumps(model, JSON_COMPACT);
    }
    json_decref(root);
    if (found)
        return srv_reply_json(request, 200, found);
    api_error error = srv_error(404, "There is no model of this name; GET /v1/models lists them.");
    error.code = "model_not_found";
    return srv_reply_error(request, &error);
}

static enum MHD_Result tokenize(srv_request *request) {
    api_error error = {0};
    char *json = api_tokenize(request->body.bytes ? request->body.bytes : "", request->body.n,
                              request->server->options->model, &error);
    return json ? srv_reply_json(request, 200, json) : srv_reply_error(request, &error);
}

static enum MHD_Result chat(srv_request *request) { return srv_generate(request, API_CHAT); }
static enum MHD_Result completions(srv_request *request) {
    return srv_generate(request, API_COMPLETION);
}

/* ------------------------------------------------------------------ the table */

static const srv_route routes[] = {
    {"/v1/chat/completions", true, false, chat}, {"/v1/completions", true, false, completions},
    {"/v1/models", false, false, models},        {"/v1/models/*", false, false, one_model},
    {"/tokenize", true, false, tokenize},        {"/health", false, true, health},
    {"/metrics", false, false, metrics},         {"/stats", false, false, stats},
};

static const srv_route page = {"/", false, true, srv_page_answer};

static bool matches(const char *pattern, const char *path) {
    const size_t n = strcspn(pattern, "*");
    return pattern[n] ? strncmp(pattern, path, n) == 0 && path[n] : strcmp(pattern, path) == 0;
}

static const srv_route *find(const char *path) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (matches(routes[i].path, path))
            return &routes[i];
    return srv_page_has(path) ? &page : NULL;
}

const char *srv_route_name(const srv_request *request) {
    return request->route ? request->route->path : "none";
}

static const char *methods_of(const srv_route *route) {
    return route->is_post ? "POST" : "GET, HEAD";
}

static bool allows(const srv_route *route, const char *method) {
    return route->is_post ? strcmp(method, MHD_HTTP_METHOD_POST) == 0
                          : strcmp(method, MHD_HTTP_METHOD_GET) == 0 ||
                                strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
}

/* ------------------------------------------------------------------ refusing */

static void refuse(srv_request *request, api_error error, const char *name, const char *value) {
    request->is_refused = true;
    request->refusal = error;
    request->extra_name = name;
    request->extra_value = value;
}

/* curl sends a form's type unless told otherwise, and some clients none at all: the body decides
 * whether it is JSON. Only what is surely something else is refused. */
static bool has_foreign_body(const srv_request *request) {
    const char *type = srv_header(request, MHD_HTTP_HEADER_CONTENT_TYPE);
    const char *encoding = srv_header(request, MHD_HTTP_HEADER_CONTENT_ENCODING);
    return (type && strncasecmp(type, "multipart/", 10) == 0) ||
           (encoding && strcasecmp(encoding, "identity") != 0);
}

void srv_route_choose(srv_request *request) {
    const srv_http *server = request->server;
    request->route = find(request->path);
    const srv_route *route = request->route;
    const char *stranger = srv_browser_refuses(request);
    if (stranger)
        refuse(request, srv_error(403, "%s", stranger), NULL, NULL);
    else if (!route)
        refuse(request, srv_error(404, "There is nothing at this path."), NULL, NULL);
    else if (srv_cors_is_preflight(request))
        return;
    else if (!allows(route, request->method))
        refuse(request, srv_error(405, "This path answers %s only.", methods_of(route)),
               MHD_HTTP_HEADER_ALLOW, methods_of(route));
    else if (server->keys && !route->is_open &&
             !srv_api_keys_allow(server->keys, srv_header(request, MHD_HTTP_HEADER_AUTHORIZATION)))
        refuse(request,
               srv_error(401, "This server needs an API key: send 'Authorization: Bearer KEY' "
                              "with a valid one."),
               MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    else if (has_foreign_body(request))
        refuse(request, srv_error(415, "The body must be JSON, neither compressed nor multipart."),
               NULL, NULL);
}

enum MHD_Result srv_route_answer(srv_request *request) {
    if (request->is_refused)
        return srv_reply_error(request, &request->refusal);
    if (!srv_cors_is_preflight(request))
        return request->route->answer(request);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (response)
        srv_cors_add_preflight(request, response, methods_of(request->route));
    return srv_reply(request, 204, response);
}
